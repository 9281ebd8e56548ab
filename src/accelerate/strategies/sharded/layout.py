"""Which part of a whole tensor a rank holds."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

__all__ = ["gather_whole", "is_row_sharded", "local_part", "rows_of"]


def is_row_sharded(tensor: DTensor) -> bool:
    """Whether the tensor is cut into rows along its last mesh axis and copied along the others, as FSDP lays it out."""
    return tensor.placements[-1] == Shard(0) and all(placement.is_replicate() for placement in tensor.placements[:-1])


def rows_of(length: int, size: int, index: int) -> tuple[int, int]:
    """(first row, number of rows) of part ``index`` when ``length`` rows are cut into ``size`` parts."""
    rows = -(-length // size)
    start = min(index * rows, length)
    return start, min(rows, length - start)


def local_part(whole: torch.Tensor, like: DTensor) -> torch.Tensor:
    """The part of ``whole`` that this rank holds where it is laid out as ``like``; a view where it can be. Collective
    only for layouts other than rows."""
    if is_row_sharded(like):
        axis = like.device_mesh.ndim - 1
        start, count = rows_of(like.shape[0], like.device_mesh.size(axis), like.device_mesh.get_local_rank(axis))
        return whole[start : start + count]
    return distribute_tensor(whole.to(like.device_mesh.device_type), like.device_mesh, like.placements).to_local()


def gather_whole(tensor: DTensor, device: torch.device | None = None) -> torch.Tensor | None:
    """Collective over the tensor's mesh. The whole tensor on the mesh's first rank (on ``device``), None elsewhere.

    Parts are sent to the first rank only: no other rank ever holds more than its own.
    """
    mesh = tensor.device_mesh
    if not is_row_sharded(tensor):
        whole = tensor.full_tensor()
        first = all(mesh.get_local_rank(axis) == 0 for axis in range(mesh.ndim))
        return whole.to(device or whole.device) if first else None
    axis = mesh.ndim - 1
    if any(mesh.get_local_rank(outer) for outer in range(axis)):
        return None
    group, size = mesh.get_group(axis), mesh.size(axis)
    local = tensor.to_local().detach().to(mesh.device_type)
    rows = -(-tensor.shape[0] // size)
    sent = local
    if local.shape[0] != rows or not local.is_contiguous():
        sent = local.new_zeros((rows, *local.shape[1:]))
        sent[: local.shape[0]] = local
    first = mesh.get_local_rank(axis) == 0
    parts = [torch.empty_like(sent) for _ in range(size)] if first else None
    if size == 1:
        parts = [sent]
    else:
        dist.gather(sent, parts, dst=dist.get_global_rank(group, 0), group=group)
    if not first or parts is None:
        return None
    target = device or local.device
    return torch.cat([part.to(target) for part in parts])[: tensor.shape[0]]
