"""The seam for a kind of device. A new vendor is one row of the table in :mod:`accelerate.devices`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

__all__ = ["DeviceBackend", "MemoryPort", "RngPort"]


class RngPort(Protocol):
    """The random generators of one kind of device (all its devices at once)."""

    def get_state(self) -> Any:
        """The generators' state, as a tensor or a list of tensors on the CPU."""
        ...

    def set_state(self, state: Any) -> None:
        """Restores what ``get_state`` returned."""
        ...

    def seed(self, seed: int) -> None:
        """Seeds every generator of this kind."""
        ...

    def get_current(self) -> torch.Tensor | None:
        """The state of the generator of the device in use, as a CPU tensor; None where it has none of its own."""
        ...

    def set_current(self, state: torch.Tensor) -> None:
        """Restores what ``get_current`` returned."""
        ...


class MemoryPort(Protocol):
    """Memory of one kind of device, in bytes."""

    def empty_cache(self) -> None:
        """Gives cached blocks back to the device."""
        ...

    def available(self, index: int = 0) -> int:
        """Free bytes on device ``index``."""
        ...

    def total(self, index: int = 0) -> int:
        """All bytes of device ``index``."""
        ...

    def peak(self, index: int = 0) -> int:
        """The most bytes allocated since ``reset_peak``."""
        ...

    def reset_peak(self, index: int = 0) -> None:
        """Starts a new peak."""
        ...


class DeviceBackend(ABC):
    """One kind of device: how many there are, how a process takes one, and which collective backend goes with it."""

    type: str
    comm_backend: str | None
    visible_env: str | None
    rng: RngPort
    memory: MemoryPort

    @abstractmethod
    def is_available(self) -> bool:
        """Whether this machine has one. Never initialises a device context."""

    @abstractmethod
    def count(self) -> int:
        """How many this process may see."""

    @abstractmethod
    def activate(self, local_rank: int) -> torch.device:
        """Makes the device of this local rank the current one and returns it."""

    @abstractmethod
    def supports(self, dtype: torch.dtype) -> bool:
        """Whether autocast to ``dtype`` works on this device."""
