"""Weights that only the first rank has: every rank gets its shards of them, and nothing more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

from accelerate.checkpoint.naming import strip_markers

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["fill", "make_room", "scatter_into"]


def make_room(model: torch.nn.Module, device: torch.device) -> set[str]:
    """Allocates this rank's shards of a divided model, uninitialised, wherever they are on "meta" still; returns the
    canonical names of those parameters."""
    names = {strip_markers(name) for name, p in model.named_parameters() if p.is_meta and isinstance(p, DTensor)}
    fresh: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
    for module in model.modules():
        for leaf, parameter in module._parameters.items():
            if parameter is None or not parameter.is_meta or not isinstance(parameter, DTensor):
                continue
            if parameter not in fresh:
                local = torch.empty_like(parameter.to_local(), device=device)
                whole = DTensor.from_local(
                    local,
                    parameter.device_mesh,
                    parameter.placements,
                    run_check=False,
                    shape=parameter.shape,
                    stride=parameter.stride(),
                )
                fresh[parameter] = torch.nn.Parameter(whole, requires_grad=parameter.requires_grad)
            module._parameters[leaf] = fresh[parameter]
    return names


def fill(model: torch.nn.Module, held: Mapping[str, torch.Tensor], names: set[str]) -> None:
    """Collective. Copies the first rank's whole tensors into the shards of the named parameters of a divided model."""
    for name, parameter in model.named_parameters():
        key = strip_markers(name)
        if key in names:
            assert isinstance(parameter, DTensor)
            scatter_into(parameter, held.get(key))


def scatter_into(parameter: DTensor, whole: torch.Tensor | None) -> None:
    """Collective over the parameter's mesh. Gives each rank its part of ``whole``, which only the first rank passes.

    No rank but the first ever holds more than its part.
    """
    mesh, placements = parameter.device_mesh, parameter.placements
    local = parameter.to_local().detach()
    if placements[-1] != Shard(0) or any(p != Replicate() for p in placements[:-1]):
        _broadcast_into(parameter, local, whole)
        return
    axis = mesh.ndim - 1
    device = torch.device(mesh.device_type) if mesh.device_type != local.device.type else local.device
    part = local
    if all(mesh.get_local_rank(outer) == 0 for outer in range(axis)):
        part = _scatter(local, whole, parameter.shape[0], mesh, device)
        local.copy_(part)
    for outer in range(axis):
        if all(mesh.get_local_rank(later) == 0 for later in range(outer + 1, axis)):
            sent = local.to(device)
            group = mesh.get_group(outer)
            dist.broadcast(sent, src=dist.get_global_rank(group, 0), group=group)
            if sent is not local:
                local.copy_(sent)


def _scatter(
    local: torch.Tensor, whole: torch.Tensor | None, length: int, mesh: DeviceMesh, device: torch.device
) -> torch.Tensor:
    """This rank's rows of the source's ``whole``. Every rank is sent as many rows as the first has."""
    axis = mesh.ndim - 1
    group, size = mesh.get_group(axis), mesh.size(axis)
    rows = -(-length // size)
    source = mesh.get_local_rank(axis) == 0
    exact = local.shape[0] == rows and local.is_contiguous() and local.device == device
    part = local if exact else torch.empty((rows, *local.shape[1:]), dtype=local.dtype, device=device)
    chunks = None
    if source:
        assert whole is not None
        whole = whole.detach().to(device=device, dtype=local.dtype).contiguous()
        chunks = [_padded(whole[i * rows : (i + 1) * rows], rows) for i in range(size)]
    if size == 1:
        assert chunks is not None
        return chunks[0]
    dist.scatter(part, chunks, src=dist.get_global_rank(group, 0), group=group)
    return part[: local.shape[0]]


def _padded(chunk: torch.Tensor, rows: int) -> torch.Tensor:
    if chunk.shape[0] == rows:
        return chunk
    padded = chunk.new_zeros((rows, *chunk.shape[1:]))
    padded[: chunk.shape[0]] = chunk
    return padded


def _broadcast_into(parameter: DTensor, local: torch.Tensor, whole: torch.Tensor | None) -> None:
    """For placements other than rows of one axis: each rank cuts its part from a copy of the whole."""
    from torch.distributed.tensor import distribute_tensor

    from accelerate.strategies.sharded.agreement import broadcast

    mesh = parameter.device_mesh
    copy = torch.empty(parameter.shape, dtype=parameter.dtype, device=mesh.device_type)
    if whole is not None:
        copy.copy_(whole)
    broadcast(copy, mesh)
    local.copy_(distribute_tensor(copy, mesh, parameter.placements).to_local())
