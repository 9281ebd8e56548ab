"""Whether the ranks begin with the same tensors, found out without sending them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["broadcast", "differing", "digest", "reduce_max"]

_SAMPLE = 1024


def digest(tensor: torch.Tensor) -> int:
    """A number made of the shape and of up to 1024 elements spread over the tensor; 0 where it has no data ("meta")."""
    if tensor.is_meta:
        return 0
    flat = tensor.detach().reshape(-1)
    step = max(1, flat.numel() // _SAMPLE)
    raw = flat[::step].cpu().contiguous().view(torch.uint8).to(torch.int64)
    weights = torch.arange(1, raw.numel() + 1, dtype=torch.int64) * 2654435761 + 1
    total = int((raw * weights).sum()) if raw.numel() else 0
    return (total ^ (hash(tuple(tensor.shape)) & 0xFFFFFFFF)) & 0x3FFFFFFFFFFFFFFF | 1


def reduce_max(values: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Collective over ``mesh``. The element-wise maximum over all its ranks, on the CPU."""
    values = values.to(mesh.device_type)
    for axis in range(mesh.ndim):
        dist.all_reduce(values, op=dist.ReduceOp.MAX, group=mesh.get_group(axis))
    return values.cpu()


def differing(tensors: Mapping[str, torch.Tensor], mesh: DeviceMesh) -> list[str]:
    """Collective over ``mesh``. Names of the tensors whose values are not the same on all its ranks.

    Every rank must give the same names in the same order. One small all-reduce, however large the tensors.
    """
    if not tensors:
        return []
    own = torch.tensor([digest(tensor) for tensor in tensors.values()], dtype=torch.int64)
    largest, smallest = reduce_max(torch.stack([own, -own]), mesh)
    differ = (largest != -smallest).tolist()
    return [name for name, different in zip(tensors, differ, strict=True) if different]


def broadcast(tensor: torch.Tensor, mesh: DeviceMesh) -> None:
    """Collective over ``mesh``. Overwrites ``tensor`` in place with the values of the mesh's first rank.

    It goes along the first axis first, so it is sent once between groups that are far apart, then inside each group.
    """
    data = tensor.detach()
    sent = data if data.is_contiguous() and data.device.type == mesh.device_type else data.to(mesh.device_type)
    sent = sent.contiguous()
    for axis in range(mesh.ndim):
        if all(mesh.get_local_rank(later) == 0 for later in range(axis + 1, mesh.ndim)):
            group = mesh.get_group(axis)
            dist.broadcast(sent, src=dist.get_global_rank(group, 0), group=group)
    if sent.data_ptr() != data.data_ptr() or sent.device != data.device:
        data.copy_(sent)
