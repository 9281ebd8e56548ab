"""The group of one process: every collective call is answered on the spot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["SoloCollectives"]


class SoloCollectives:
    """A group of one."""

    rank = 0
    size = 1

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Collective. The tensor with a leading dimension of 1."""
        return tensor.detach().clone().unsqueeze(0)

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """Collective. A copy of the tensor."""
        return tensor.detach().clone()

    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
        """Collective. A copy of the tensor."""
        return tensor.detach().clone()

    def all_gather_object(self, obj: Any) -> list[Any]:
        """Collective. The object alone."""
        return [obj]

    def broadcast_objects(self, objs: list[Any], src: int = 0) -> list[Any]:
        """Collective. The same objects in a new list."""
        return list(objs)

    def barrier(self) -> None:
        """Collective. Returns at once."""
