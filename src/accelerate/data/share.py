"""Which of the base batches a rank gets, and when it has got its last."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, cycle, islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accelerate.data.sampler import BatchSamplerShard
    from accelerate.data.source import BatchSource

__all__ = ["Emission", "divide"]


@dataclass(slots=True, kw_only=True)
class Emission:
    """What an iteration over a shard of batches has told so far.

    total: batches (groups of them, where a step is cut elsewhere) it gives in all; known with the last one at latest.
    base: base batches in these, known one step earlier where the last step is short.
    real: different samples in the last step, over all ranks; ``filled`` where more were given, to fill it.
    snapshots: a batch sampler's own state after each step, where it has one.
    """

    started: bool = False
    total: int | None = None
    base: int | None = None
    real: int = 0
    filled: bool = False
    snapshots: deque[Any] = field(default_factory=deque)


def divide(shard: BatchSamplerShard, source: BatchSource, emission: Emission) -> Iterator[list[int]]:
    """The batches of this rank. Looks one step ahead in the indices, so the last batch is known for what it is."""
    width = source.feed.group if shard.split_batches or shard.num_processes == 1 else shard.num_processes
    source.watch(width, emission.snapshots)
    if shard.num_processes == 1:
        return _everything(shard, source, emission)
    if shard.split_batches:
        return _cut(shard, source, emission)
    if shard.batch_size is None:
        return _by_size(shard, source, emission)
    return _in_turn(shard, source, emission)


def _steps(
    source: BatchSource, width: int, useful: Callable[[list[list[int]]], bool], emission: Emission
) -> Iterator[list[list[int]]]:
    """Base batches, ``width`` at a time, up to the first group that is not ``useful``."""
    emission.started = True
    group = source.take(width)
    count = 0
    if not useful(group):
        emission.total = emission.base = 0
        return
    while True:
        count += 1
        following = source.take(width) if len(group) == width else []
        going_on = useful(following)
        if len(following) < width or not going_on:
            done = count - 1 if len(group) < width else count
            emission.base = done * width + (len(group) if len(group) < width else len(following) if going_on else 0)
        if not going_on:
            emission.total = count
            emission.real = sum(map(len, group))
        yield group
        if not going_on:
            return
        group = following


def _everything(shard: BatchSamplerShard, source: BatchSource, emission: Emission) -> Iterator[list[int]]:
    """All batches. Where they are used up in groups, a short last group is left out, filled, or left as it is."""
    feed = source.feed
    if feed.group > 1 or feed.snapshots or feed.fill:
        least = feed.group if shard.drop_last else 1
        for group in _steps(source, feed.group, lambda found: len(found) >= least, emission):
            if emission.total is not None and feed.fill:
                filled = _completed(group, feed.group, shard.batch_size, source, emission)
                emission.base = (emission.base or 0) + len(filled) - len(group)
                group = filled
            yield from group
        return
    emission.started = True
    count = 0
    batches = iter(source)
    for batch in batches:
        for following in batches:
            count += 1
            yield batch
            batch = following
        emission.total = emission.base = count + 1
        emission.real = len(batch)
        yield batch
    if emission.total is None:
        emission.total = emission.base = 0


def _completed(
    group: list[list[int]], ranks: int, size: int | None, source: BatchSource, emission: Emission
) -> list[list[int]]:
    """A last group, with a full batch for each of ``ranks``: samples from the beginning fill it, or whole batches where
    there is no fixed size."""
    if size is None or len(group[-1]) > size or any(len(batch) != size for batch in group[:-1]):
        if len(group) < ranks:
            emission.filled = True
            group = group + list(islice(cycle(source.head()), ranks - len(group)))
        return group
    if len(group) == ranks and len(group[-1]) == size:
        return group
    flat = _filled(list(chain(*group)), ranks * size, source.head(), emission)
    return [flat[first : first + size] for first in range(0, len(flat), size)]


def _in_turn(shard: BatchSamplerShard, source: BatchSource, emission: Emission) -> Iterator[list[int]]:
    """One batch for each rank, in turn."""
    ranks, index = shard.num_processes, shard.process_index
    for group in _steps(source, ranks, _enough(shard, ranks), emission):
        if emission.total is not None and shard.even_batches:
            group = _completed(group, ranks, shard.batch_size, source, emission)
        yield group[index]


def _by_size(shard: BatchSamplerShard, source: BatchSource, emission: Emission) -> Iterator[list[int]]:
    """One batch for each rank, the largest for the rank that has had the least so far."""
    ranks, index = shard.num_processes, shard.process_index
    loads = [0] * ranks
    for skipped in source.left_out(ranks):
        _assigned(skipped, loads)
    for group in _steps(source, ranks, _enough(shard, ranks), emission):
        if len(group) == ranks:
            yield group[_assigned(group, loads)[index]]
        else:
            yield (_completed(group, ranks, None, source, emission) if shard.even_batches else group)[index]


def _cut(shard: BatchSamplerShard, source: BatchSource, emission: Emission) -> Iterator[list[int]]:
    """A part of every batch. A batch of no fixed size is always filled so that every rank gets the same number."""
    ranks, index, size = shard.num_processes, shard.process_index, shard.batch_size
    fill = shard.even_batches or size is None
    first = 0 if size is None else index * (size // ranks)
    for (batch,) in _steps(source, 1, lambda found: bool(found) and (fill or len(found[0]) > first), emission):
        wanted = size if size is not None and len(batch) <= size else -(-len(batch) // ranks) * ranks
        if len(batch) < wanted and fill:
            batch = _filled(batch, wanted, source.head(), emission if emission.total is not None else Emission())
        part = wanted // ranks
        yield batch[index * part : (index + 1) * part]


def _enough(shard: BatchSamplerShard, ranks: int) -> Callable[[list[list[int]]], bool]:
    """Whether a group, which may be the last, gives something to this rank."""
    least = ranks if shard.drop_last else 1 if shard.even_batches else shard.process_index + 1
    return lambda group: len(group) >= least


def _assigned(group: list[list[int]], loads: list[int]) -> list[int]:
    """For each rank the batch of ``group`` it gets; ``loads`` (samples had so far) grow by it."""
    ranks = sorted(range(len(loads)), key=lambda rank: loads[rank])
    batches = sorted(range(len(group)), key=lambda i: -len(group[i]))
    chosen = [0] * len(loads)
    for rank, i in zip(ranks, batches, strict=False):
        chosen[rank] = i
        loads[rank] += len(group[i])
    return chosen


def _filled(samples: list[int], wanted: int, head: list[list[int]], emission: Emission) -> list[int]:
    """``samples`` and as many from the beginning of the epoch as make ``wanted``."""
    if len(samples) < wanted:
        emission.filled = True
        samples = samples + list(islice(cycle(chain(*head)), wanted - len(samples)))
    return samples
