"""Gathering tensors whose first dimension differs between the ranks."""

from __future__ import annotations

import math
from typing import Any

import torch

from accelerate.comm.frames import Op, Rows, aligned
from accelerate.comm.here import frames
from accelerate.comm.plain import padded, taken
from accelerate.comm.spec import restore, words

__all__ = ["gather_uneven"]


def gather_uneven(tensor: Any) -> Any:
    """Collective. As ``accelerate.comm.operations.gather``, for tensors whose first dimension may differ between ranks.

    Raises:
        CollectiveError: structures, dtypes or other dimensions differ.
        TypeError: a leaf is neither a tensor nor None.
    """
    wire = frames()
    if wire is None:
        return tensor
    spec, tensors = taken(wire, Op.GATHER_FOR_METRICS, tensor)
    tensors = [item if item.ndim else item.view(1) for item in tensors]
    key = (spec, tuple([(item.shape[1:], item.dtype) for item in tensors]))
    lengths = [item.shape[0] for item in tensors]
    counts, sent = wire.swap_uneven(Op.GATHER_FOR_METRICS, key, lengths, tensors, lambda: words(tensor))
    even = all(count == lengths for count in counts)
    if sent is None:
        largest = [max(column) for column in zip(*counts, strict=True)]
        tensors = [padded(item, 0, most) for item, most in zip(tensors, largest, strict=True)]
        rows, starts = wire.send_apart(tensors)
        joined = [
            _joined(
                row.take(start, item.nbytes, item.dtype).view(wire.size, *item.shape), [count[i] for count in counts]
            )
            for i, (item, row, start) in enumerate(zip(tensors, rows, starts, strict=True))
        ]
    elif even:
        joined = _alike(sent, tensors, wire.size, wire.body(len(tensors)))
    else:
        joined = _apart(sent, tensors, counts, wire.body(len(tensors)))
    return joined[0] if spec == 0 else restore(tensor, iter(joined))


def _joined(rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
    if all(count == rows.shape[1] for count in counts):
        return rows.flatten(0, 1)
    return torch.cat([row[:count] for row, count in zip(rows, counts, strict=True)])


def _alike(sent: torch.Tensor, tensors: list[torch.Tensor], size: int, start: int) -> list[torch.Tensor]:
    """The tensors of all ranks out of their frames, where every rank's are laid out alike."""
    rows, joined = Rows(sent), []
    for item in tensors:
        joined.append(rows.take(start, item.nbytes, item.dtype).view(size * item.shape[0], *item.shape[1:]))
        start += aligned(item.nbytes)
    return joined


def _apart(sent: torch.Tensor, tensors: list[torch.Tensor], counts: list[list[int]], start: int) -> list[torch.Tensor]:
    """The same where the first dimensions differ, so that every rank's tensors begin elsewhere."""
    parts: list[list[torch.Tensor]] = [[] for _ in tensors]
    for frame, count in zip(sent, counts, strict=True):
        place = start
        for item, length, part in zip(tensors, count, parts, strict=True):
            nbytes = length * math.prod(item.shape[1:]) * item.itemsize
            part.append(frame[place : place + nbytes].view(item.dtype).view(length, *item.shape[1:]))
            place += aligned(nbytes)
    return [torch.cat(part) for part in parts]
