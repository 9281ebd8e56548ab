"""Which process this is, and what only some processes do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from accelerate.state import PartialState

if TYPE_CHECKING:
    import torch

    from accelerate.accelerator.typing import Facade
    from accelerate.config.enums import DistributedType

__all__ = ["ProcessMixin"]


class ProcessMixin:
    """Forwards to the process's state. Decorators may be written with and without parentheses."""

    @property
    def distributed_type(self: Facade) -> DistributedType:
        """How the job is distributed, as a ``DistributedType``."""
        return self.state.distributed_type  # type: ignore[no-any-return]

    @property
    def num_processes(self: Facade) -> int:
        """The number of processes in the job."""
        return self.state.num_processes  # type: ignore[no-any-return]

    @property
    def process_index(self: Facade) -> int:
        """This process's rank in the job."""
        return self.state.process_index  # type: ignore[no-any-return]

    @property
    def local_process_index(self: Facade) -> int:
        """This process's rank on its machine."""
        return self.state.local_process_index  # type: ignore[no-any-return]

    @property
    def device(self: Facade) -> torch.device:
        """The device of this process."""
        return self.state.device  # type: ignore[no-any-return]

    @property
    def use_distributed(self) -> bool:
        """Whether there is more than one process."""
        return bool(PartialState().use_distributed)

    @property
    def multi_device(self) -> bool:
        """Whether the job runs on several devices of its own kind."""
        return bool(PartialState().use_distributed)

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0 of the job."""
        return bool(PartialState().is_main_process)

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is rank 0 of its machine."""
        return bool(PartialState().is_local_main_process)

    @property
    def is_last_process(self) -> bool:
        """Whether this is the last rank of the job."""
        return bool(PartialState().is_last_process)

    def on_main_process(self, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Decorator: the function runs on rank 0 only, and returns None elsewhere."""
        return PartialState().on_main_process(function)

    def on_local_main_process(self, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Decorator: the function runs on rank 0 of every machine only, and returns None elsewhere."""
        return PartialState().on_local_main_process(function)

    def on_last_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: the function runs on the last rank only, and returns None elsewhere."""
        return PartialState().on_last_process(function)

    def on_process(
        self, function: Callable[..., Any] | None = None, process_index: int | None = None
    ) -> Callable[..., Any]:
        """Decorator: the function runs on rank ``process_index`` only, and returns None elsewhere."""
        return PartialState().on_process(function, process_index)

    def on_local_process(
        self, function: Callable[..., Any] | None = None, local_process_index: int | None = None
    ) -> Callable[..., Any]:
        """Decorator: the function runs on local rank ``local_process_index`` of every machine only."""
        return PartialState().on_local_process(function, local_process_index)

    def main_process_first(self) -> AbstractContextManager[None]:
        """Collective. A context that rank 0 goes through before the others; its exception is raised on every rank."""
        return PartialState().main_process_first()

    def local_main_process_first(self) -> AbstractContextManager[None]:
        """Collective. As ``main_process_first``, for the first rank of every machine."""
        return PartialState().local_main_process_first()

    def wait_for_everyone(self) -> None:
        """Collective. Returns when every rank has called it."""
        PartialState().wait_for_everyone()

    def print(self, *args: Any, **kwargs: Any) -> None:
        """``print`` on the first rank of every machine only."""
        PartialState().print(*args, **kwargs)

    def split_between_processes(
        self, inputs: list[Any] | tuple[Any, ...] | dict[str, Any] | torch.Tensor, apply_padding: bool = False
    ) -> AbstractContextManager[Any]:
        """A context that gives this rank's part of ``inputs``, as equal as can be.

        With ``apply_padding`` the last element is repeated, so that every rank gets as many.
        """
        return PartialState().split_between_processes(inputs, apply_padding=apply_padding)
