"""Cutting whole batches for the ranks, whatever is in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from accelerate.comm.nested import concatenate, honor_type, is_namedtuple, leaves, rebuild
from accelerate.errors import PrepareError

__all__ = ["NOT_GIVEN", "join", "rows", "shares", "sliced", "take"]

NOT_GIVEN = object()
"""Stands for the part of a rank that gets none."""


def rows(batch: Any) -> int | None:
    """How many samples are in ``batch``: the first dimension of its first tensor, or the length of its first list of
    plain values; None where there is neither."""
    for tensor in leaves(batch):
        if tensor.ndim:
            return int(tensor.shape[0])
    return _longest_column(batch)


def _longest_column(data: Any) -> int | None:
    if isinstance(data, Mapping):
        found = (_longest_column(value) for value in data.values())
    elif isinstance(data, (list, tuple)) and not is_namedtuple(data):
        if not any(isinstance(item, (list, tuple, Mapping)) for item in data):
            return len(data)
        found = (_longest_column(item) for item in data)
    elif isinstance(data, tuple):
        found = (_longest_column(item) for item in data)
    else:
        return None
    return next((length for length in found if length is not None), None)


def take(batch: Any, start: int, stop: int, size: int) -> Any:
    """Samples ``start`` to ``stop`` of a batch of ``size``. What is not one entry a sample is kept as it is."""
    if isinstance(batch, torch.Tensor):
        return batch[start:stop] if batch.ndim and batch.shape[0] == size else batch
    if isinstance(batch, Mapping):
        return rebuild(batch, {key: take(value, start, stop, size) for key, value in batch.items()})
    if isinstance(batch, (list, tuple)):
        if _is_column(batch, size):
            return batch[start:stop]
        return honor_type(batch, [take(item, start, stop, size) for item in batch])
    shape = getattr(batch, "shape", None)
    return batch[start:stop] if isinstance(shape, tuple) and shape[:1] == (size,) else batch


def _is_column(data: Sequence[Any], size: int) -> bool:
    """Whether a list has one entry for each of ``size`` samples, rather than one for each field of a batch."""
    if len(data) != size or is_namedtuple(data):
        return False
    return not any(tensor.ndim and tensor.shape[0] == size for tensor in leaves(data))


def join(batches: Sequence[Any]) -> Any:
    """One batch of all samples in ``batches``.

    Raises:
        RuntimeError, TypeError: they differ in shape, or in something that is not one entry a sample.
    """
    return batches[0] if len(batches) == 1 else concatenate(list(batches))


def shares(
    batches: list[Any], count: int, *, split: bool, size: int | None, even: bool, head: list[Any]
) -> tuple[list[Any], int]:
    """One part of ``batches`` for each of ``count`` ranks, and how many samples are real if some had to be filled in
    (else 0).

    split: the one batch is cut; otherwise each rank gets a batch as it is. size: samples of a full batch. head: the
    first batches of the epoch, which fill what is missing where ``even``. Otherwise a rank may get NOT_GIVEN, or, of a
    batch that is cut, less than another.
    """
    if split:
        return _cut(batches[0], count, size, even, head)
    if not even:
        return batches + [NOT_GIVEN] * (count - len(batches)), 0
    have = [rows(batch) for batch in batches]
    full = size if size is not None else rows(head[0])
    if len(batches) == count and (have[-1] is None or full is None or have[-1] >= full):
        return batches, 0
    real = sum(number or 1 for number in have)
    if full is None or any(number != full for number in have[:-1]) or (have[-1] or full + 1) > full:
        return batches + _repeated(head, count - len(batches)), real if len(batches) < count else 0
    return _filled(batches, have[-1] or 0, count, full, head), real


def _cut(batch: Any, count: int, size: int | None, even: bool, head: list[Any]) -> tuple[list[Any], int]:
    have = rows(batch)
    if have is None:
        raise PrepareError(
            f"split_batches=True shares out each batch, but a {type(batch).__name__} with no tensor and no list in it "
            "cannot be cut. Use split_batches=False, where each process gets whole batches, or pass "
            "slice_fn_for_dispatch."
        )
    wanted = size if even and size is not None and have <= size else have
    if even or have < count:
        wanted = -(-wanted // count) * count
    real = 0
    if have < wanted:
        real = have
        batch = _topped_up(batch, have, wanted, head)
    ends = [wanted * rank // count for rank in range(count + 1)]
    return [take(batch, ends[rank], ends[rank + 1], wanted) for rank in range(count)], real


def _filled(batches: list[Any], last: int, count: int, full: int, head: list[Any]) -> list[Any]:
    """The short last batch, and those that are missing, filled with samples from the beginning."""
    wanted = (count - len(batches)) * full + full - last
    try:
        filler = _topped_up(None, 0, wanted, head)
        short = batches[-1] if last == full else join([batches[-1], take(filler, 0, full - last, wanted)])
        first = full - last
        more = [take(filler, first + i * full, first + (i + 1) * full, wanted) for i in range(count - len(batches))]
    except (RuntimeError, TypeError):
        # Samples that differ in shape make no common batch. Whole batches do.
        return batches + _repeated(head, count - len(batches))
    return [*batches[:-1], short, *more]


def _topped_up(batch: Any, have: int, wanted: int, head: list[Any]) -> Any:
    """``batch`` with samples from the beginning, so that there are ``wanted``."""
    parts = [] if batch is None else [batch]
    place = 0
    while have < wanted:
        source = head[place % len(head)]
        length = rows(source) or 0
        if not length:
            raise TypeError("a batch at the beginning has no samples")
        parts.append(take(source, 0, min(length, wanted - have), length))
        have += min(length, wanted - have)
        place += 1
    return join(parts)


def _repeated(head: list[Any], count: int) -> list[Any]:
    return [head[i % len(head)] for i in range(count)]


def sliced(
    batches: list[Any], count: int, slice_fn: Callable[..., Any], *, even: bool, head: list[Any]
) -> tuple[list[Any], int]:
    """As :func:`shares`, but all samples of the step are joined, and a user's ``slice_fn`` cuts them."""
    whole = join(batches)
    have = rows(whole)
    real = 0
    if have is not None and have % count and even:
        real = have
        have += -have % count
        whole = _topped_up(whole, real, have, head)
    part = -(-(have or count) // count)
    parts = [
        slice_fn(whole, slice(rank * part, (rank + 1) * part), process_index=rank, num_processes=count)
        for rank in range(count)
    ]
    return parts, real
