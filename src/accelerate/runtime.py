"""What one process knows about the job it is part of, and the one place where that is kept.

There is one :class:`Runtime` in a process. A test that runs ranks as threads overrides the slot for each thread with
:func:`isolated`; nothing else does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from accelerate.errors import StateError

if TYPE_CHECKING:
    import torch

    from accelerate.comm.base import Collectives
    from accelerate.devices.base import DeviceBackend
    from accelerate.precision.base import Precision
    from accelerate.strategies.base import Strategy
    from accelerate.topology import Topology

__all__ = ["Runtime", "Slots", "current", "find", "install", "isolated", "reset", "slots"]


@dataclass(slots=True, kw_only=True)
class Runtime:
    """Topology, device and collectives of this process; then the strategy and precision that an Accelerator chose.

    ``strategy`` and ``precision`` are None until an Accelerator is constructed. ``mesh`` is the DeviceMesh of a
    parallelism configuration (``parallelism``), or None for plain data parallelism. ``origin`` is the line of the
    program that first asked for a state.
    """

    topology: Topology
    device: torch.device
    backend: DeviceBackend
    comm_backend: str | None
    collectives: Collectives
    cpu: bool = False
    verify_shapes: bool = False
    strategy: Strategy[Any] | None = None
    precision: Precision | None = None
    mesh: Any | None = None
    parallelism: Any | None = None
    origin: str = "an unknown place"


@dataclass(slots=True)
class Slots:
    """Everything process-wide: the Runtime, and the dictionaries that the public state classes share.

    ``topology`` is told by whoever runs several ranks in one process; None where the environment tells it. ``frames``
    belongs to :mod:`accelerate.comm.here`, ``job`` and ``meeting`` to :mod:`accelerate.comm.connection` (the first
    stays with the process group, whatever is reset, the second with the process), ``seed`` to
    :mod:`accelerate.devices.rng`.
    """

    runtime: Runtime | None = None
    topology: Topology | None = None
    partial: dict[str, Any] = field(default_factory=dict)
    accelerator: dict[str, Any] = field(default_factory=dict)
    gradient: dict[str, Any] = field(default_factory=dict)
    frames: Any | None = None
    job: Any | None = None
    meeting: Any | None = None
    seed: Any | None = None


_process = Slots()
_override: ContextVar[Slots | None] = ContextVar("accelerate_slots", default=None)


def slots() -> Slots:
    """The slots of this rank."""
    return _override.get() or _process


def find() -> Runtime | None:
    """The Runtime of this rank, or None where nothing was set up yet."""
    return slots().runtime


def current() -> Runtime:
    """The Runtime of this rank.

    Raises:
        StateError: nothing was set up yet.
    """
    runtime = slots().runtime
    if runtime is None:
        raise StateError(
            "The state of this process was asked for before it was set up. Construct `Accelerator()` "
            "(or `PartialState()`) first."
        )
    return runtime


def install(runtime: Runtime) -> Runtime:
    """Stores ``runtime`` as this rank's."""
    slots().runtime = runtime
    return runtime


def reset() -> None:
    """Forgets the Runtime and empties the shared dictionaries. The process group is left as it is."""
    held = slots()
    held.runtime = held.frames = held.seed = None
    for shared in (held.partial, held.accelerator, held.gradient):
        shared.clear()


@contextmanager
def isolated(topology: Topology | None = None) -> Iterator[Slots]:
    """Gives this thread (or context) slots of its own, and a place in a job that its environment does not tell."""
    own = Slots(topology=topology)
    token = _override.set(own)
    try:
        yield own
    finally:
        _override.reset(token)
