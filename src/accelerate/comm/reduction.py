"""Which numbers a reduction is computed in: the same on every backend."""

from __future__ import annotations

import torch

__all__ = ["OPERATIONS", "narrow", "reduce_rows", "widen"]

OPERATIONS = ("sum", "mean", "min", "max")

_HALF = frozenset({torch.float16, torch.bfloat16})
_NATIVE = _HALF | frozenset({torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.int8})


def widen(tensor: torch.Tensor, op: str) -> torch.Tensor:
    """``tensor`` in numbers that every backend can reduce by ``op``: complex as pairs, the rest in the next wider kind.

    Raises:
        ValueError: ``op`` is unknown, or complex numbers have no order to take a minimum or maximum by.
    """
    if op not in OPERATIONS:
        raise ValueError(f"reduction={op!r} is not one of {', '.join(OPERATIONS)}.")
    if tensor.is_complex():
        if op in ("min", "max"):
            raise ValueError(f"reduction={op!r} needs an order, which complex numbers lack. Reduce their abs().")
        return torch.view_as_real(tensor.resolve_conj())
    if op == "mean" and not tensor.is_floating_point():
        return tensor.to(torch.float32)
    if tensor.dtype is torch.bool:
        return tensor.to(torch.int64 if op == "sum" else torch.uint8)
    if tensor.dtype in _HALF and op in ("sum", "mean"):
        return tensor.to(torch.float32)  # many ranks would overflow or round away small terms
    if tensor.dtype in _NATIVE:
        return tensor
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)


def narrow(reduced: torch.Tensor, dtype: torch.dtype, op: str, size: int) -> torch.Tensor:
    """What :func:`widen` made, after the reduction, as the caller expects it: ``dtype``, except that the sum of truth
    values is a count and the mean of whole numbers is a float32."""
    if op == "mean":
        reduced = reduced / size
    if dtype.is_complex:
        return torch.view_as_complex(reduced)
    if op == "mean" and not dtype.is_floating_point:
        return reduced
    if dtype is torch.bool and op == "sum":
        return reduced
    return reduced.to(dtype)


def reduce_rows(rows: torch.Tensor, op: str) -> torch.Tensor:
    """The reduction over the first dimension, in rank order, so that every rank gets the same bits."""
    size, dtype = rows.shape[0], rows.dtype
    wide = widen(rows, op)
    if op in ("sum", "mean"):
        reduced = wide.sum(0, dtype=wide.dtype)
    else:
        reduced = wide.amin(0) if op == "min" else wide.amax(0)
    return narrow(reduced, dtype, op, size)
