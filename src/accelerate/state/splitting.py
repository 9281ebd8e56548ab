"""Sharing inputs out over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["share"]


def share(inputs: Any, rank: int, size: int, padded: bool) -> Any:
    """Rank ``rank``'s part of ``inputs``: contiguous, and one longer on the first ranks where ``size`` does not divide
    the length. With ``padded`` the last element is repeated until every part has the same length.

    Lists, tuples, tensors, ``datasets.Dataset`` and dictionaries of those are shared out; anything else stays whole.

    Raises:
        ValueError: the values of a dictionary differ in length.
    """
    if isinstance(inputs, dict):
        return _share_dict(inputs, rank, size, padded)
    if not isinstance(inputs, (list, tuple, torch.Tensor)) and not _is_dataset(inputs):
        return inputs
    length = len(inputs)
    each, extra = divmod(length, size)
    start = rank * each + min(rank, extra)
    stop = start + each + (1 if rank < extra else 0)
    missing = (each + (1 if extra else 0)) - (stop - start) if padded and length else 0
    if _is_dataset(inputs):
        return inputs.select([*range(start, stop), *[length - 1] * missing])
    part = inputs[start:stop]
    if not missing:
        return part
    if isinstance(inputs, torch.Tensor):
        return torch.cat([part, inputs[-1:].expand(missing, *inputs.shape[1:])])
    filling: Sequence[Any] = inputs[-1:] * missing
    return part + filling


def _share_dict(inputs: dict[Any, Any], rank: int, size: int, padded: bool) -> dict[Any, Any]:
    lengths = {key: len(value) for key, value in inputs.items() if hasattr(value, "__len__")}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"The values of a dictionary are shared out together, but differ in length: {lengths}. Make "
            "them equally long."
        )
    return {key: share(value, rank, size, padded) for key, value in inputs.items()}


def _is_dataset(inputs: Any) -> bool:
    return type(inputs).__module__.partition(".")[0] == "datasets" and hasattr(inputs, "select")
