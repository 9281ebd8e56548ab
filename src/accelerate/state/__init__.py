"""What a process knows about its job, as shared state that anybody may construct and read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate import runtime
from accelerate.state.gradient import GradientState
from accelerate.state.partial import PartialState
from accelerate.state.shared import ThreadLocalSharedDict, do_nothing

if TYPE_CHECKING:
    from accelerate.state.accelerator import AcceleratorState

__all__ = [
    "AcceleratorState",
    "GradientState",
    "PartialState",
    "ThreadLocalSharedDict",
    "do_nothing",
    "is_initialized",
]


def is_initialized() -> bool:
    """Whether an Accelerator (or an AcceleratorState) has set up this process."""
    return runtime.slots().accelerator != {}


def __getattr__(name: str) -> Any:
    if name == "AcceleratorState":  # later than the rest: it needs the strategies, which need this package
        from accelerate.state.accelerator import AcceleratorState

        globals()[name] = AcceleratorState
        return AcceleratorState
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
