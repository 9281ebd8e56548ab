"""The seam between the library and a communication layer: tensors and objects only.

Nested structures, padding and the verification of shapes live above it, in :mod:`accelerate.comm`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

__all__ = ["Collectives"]


@runtime_checkable
class Collectives(Protocol):
    """Six collective calls over one fixed group of ranks. Every rank of the group must make the same call.

    A tensor argument has the same shape and dtype on every rank; callers above this seam have verified that.
    """

    @property
    def rank(self) -> int:
        """This process's place in the group."""
        ...

    @property
    def size(self) -> int:
        """The number of ranks in the group."""
        ...

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Collective. Returns shape ``(size, *tensor.shape)``, rank by rank, on the tensor's device."""
        ...

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """Collective. Returns a new tensor reduced by ``op`` ("sum", "mean", "min", "max")."""
        ...

    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
        """Collective. Returns rank ``src``'s tensor; the argument gives shape, dtype and device on the others."""
        ...

    def all_gather_object(self, obj: Any) -> list[Any]:
        """Collective. Returns every rank's (picklable) object, rank by rank."""
        ...

    def broadcast_objects(self, objs: list[Any], src: int = 0) -> list[Any]:
        """Collective. Returns rank ``src``'s list of objects; lists have the same length on every rank."""
        ...

    def barrier(self) -> None:
        """Collective. Returns when every rank has called it."""
        ...
