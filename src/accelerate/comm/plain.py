"""Tensors as bytes that can be sent."""

from __future__ import annotations

from typing import Any

import torch

from accelerate.comm.frames import Frames, Op
from accelerate.comm.spec import Spec, flatten

__all__ = ["padded", "plain", "taken"]


def taken(wire: Frames, op: Op, data: Any) -> tuple[Spec, list[torch.Tensor]]:
    """Collective where it fails: the structure of ``data`` and its tensors, detached and in one piece."""
    found: list[torch.Tensor] = []
    try:
        spec = flatten(data, found)
        return spec, [plain(item) for item in found]
    except (TypeError, RuntimeError) as error:
        wire.refuse(op, error)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` detached and in one piece, as its bytes can be sent.

    Raises:
        TypeError: it has no bytes of its own: sparse, nested, meta.
    """
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_nested:
        raise TypeError(
            f"A {'meta' if tensor.is_meta else 'nested' if tensor.is_nested else tensor.layout} tensor has no plain "
            "data to send. Make it dense first (to_dense(), to_padded_tensor())."
        )
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.contiguous()


def padded(tensor: torch.Tensor, dim: int, size: int, value: float = 0, first: bool = False) -> torch.Tensor:
    """``tensor`` with ``value`` added along ``dim`` up to ``size``; the same object where nothing is missing."""
    missing = size - tensor.shape[dim]
    if missing <= 0:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = missing
    filling = tensor.new_full(shape, value)
    return torch.cat([filling, tensor] if first else [tensor, filling], dim=dim)
