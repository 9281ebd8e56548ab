"""The norm of a whole model's gradient where every rank holds a part of it, and clipping by it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial

__all__ = ["Part", "clip", "dtensor_part", "total_norm"]

# A gradient's local part, and the groups over which further parts of the same gradient lie.
Part = tuple[torch.Tensor, tuple[Any, ...]]


def dtensor_part(parameter: torch.Tensor) -> Part:
    """The local part of a parameter's gradient, empty where it has none, and the groups along which it is divided."""
    gradient = parameter.grad
    laid_out = parameter if gradient is None else gradient
    if not isinstance(laid_out, DTensor):
        return (parameter.new_empty(0) if gradient is None else gradient), ()
    if any(isinstance(placement, Partial) for placement in laid_out.placements):
        laid_out = laid_out.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]
    groups = tuple(
        laid_out.device_mesh.get_group(axis)
        for axis, placement in enumerate(laid_out.placements)
        if placement.is_shard()
    )
    local = laid_out._local_tensor
    return (local.new_empty(0) if gradient is None else local), groups


def total_norm(parts: Iterable[Part], norm_type: float) -> torch.Tensor:
    """Collective over the parts' groups. The norm over all parts on all ranks, the same on each.

    One reduction for each set of groups, however many gradients there are. A rank may hold empty parts.
    """
    buckets: dict[tuple[tuple[Any, ...], torch.device], list[torch.Tensor]] = {}
    for tensor, groups in parts:
        buckets.setdefault((groups, tensor.device), []).append(tensor)
    infinite = math.isinf(norm_type)
    total: torch.Tensor | None = None
    for (groups, device), tensors in buckets.items():
        power = _local_power(tensors, norm_type, device)
        for group in groups:
            dist.all_reduce(power, op=dist.ReduceOp.MAX if infinite else dist.ReduceOp.SUM, group=group)
        if total is None:
            total = power
        else:
            power = power.to(total.device)
            total = torch.maximum(total, power) if infinite else total + power
    if total is None:
        return torch.tensor(0.0)
    return total if infinite else total ** (1.0 / norm_type)


def _local_power(tensors: list[torch.Tensor], norm_type: float, device: torch.device) -> torch.Tensor:
    """The largest magnitude, or the sum of the magnitudes to the power ``norm_type``; 0 where there is no element."""
    full = [tensor for tensor in tensors if tensor.numel()]
    if not full:
        return torch.zeros((), device=device)
    # 16-bit gradients are added up in float32: their own range and precision are too small for a sum of squares.
    dtype = torch.float64 if any(tensor.dtype == torch.float64 for tensor in full) else torch.float32
    norms = torch.stack(torch._foreach_norm(full, norm_type, dtype=dtype))
    if math.isinf(norm_type):
        return norms.max()
    return norms.pow(norm_type).sum()


def clip(
    parameters: Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float,
    part: Callable[[torch.Tensor], Part] = dtensor_part,
) -> torch.Tensor:
    """Collective. Scales the gradients so that the whole model's norm is at most ``max_norm``; returns the norm before.

    ``part(parameter)`` gives the gradient's local part and tells where the rest of it lies. Every rank must pass the
    same parameters; one without a gradient here may have one elsewhere.
    """
    if isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    parts = [part(parameter) for parameter in parameters]
    with torch.no_grad():
        norm = total_norm(parts, float(norm_type))
        if math.isinf(max_norm):
            return norm
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        by_device: dict[torch.device, list[torch.Tensor]] = {}
        for tensor, _ in parts:
            if tensor.numel():
                by_device.setdefault(tensor.device, []).append(tensor)
        for device, tensors in by_device.items():
            torch._foreach_mul_(tensors, scale.to(device))
    return norm
