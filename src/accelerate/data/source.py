"""Base batches of indices, from any place of an epoch on. Nothing is read from the dataset."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, SequentialSampler

from accelerate.data.position import Start

__all__ = ["BatchSource", "Feed", "fixed_size", "is_plain", "is_stateful"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """What the next iteration over a batch sampler has to know.

    group: how many base batches are used up together by a step that is cut elsewhere; ``fill`` makes the last as many.
    guard: a context in which the sampler runs, so that what it draws at random can be had again.
    restored: the batch sampler has been put at ``start`` by its own state; nothing is left out here.
    """

    start: Start = field(default_factory=Start)
    group: int = 1
    fill: bool = False
    guard: AbstractContextManager[Any] | None = None
    restored: bool = False
    snapshots: bool = False

    @classmethod
    def skipping(cls, steps: int, batch_sampler: Any) -> Feed:
        """Leaves out what ``steps`` batches of ``batch_sampler``, a shard or not, stand for."""
        per_step = 1
        if not getattr(batch_sampler, "split_batches", True):
            per_step = batch_sampler.num_processes
        batches = steps * per_step
        size = fixed_size(batch_sampler)
        return cls(start=Start(batches=batches, samples=None if size is None else batches * size))


def is_plain(batch_sampler: Any) -> bool:
    """Whether this is torch's (or torchdata's) own batch sampler, which takes so many indices from its sampler at a
    time and does nothing else."""
    kind = type(batch_sampler)
    return kind is BatchSampler or (kind.__name__ == "BatchSampler" and kind.__module__.startswith("torchdata."))


def is_stateful(value: Any) -> bool:
    """Whether this saves and restores a state of its own."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def fixed_size(batch_sampler: Any) -> int | None:
    """Samples in every batch but the last; None where that is not certain."""
    inner = batch_sampler
    while not is_plain(inner) and hasattr(inner, "batch_sampler"):
        inner = inner.batch_sampler
    return int(inner.batch_size) if is_plain(inner) else None


class BatchSource:
    """Takes base batches from ``batch_sampler``, beginning where ``feed`` says.

    ``head`` remembers the first batches of the epoch, also those that were left out, to fill a short last step with.
    """

    def __init__(self, batch_sampler: Any, feed: Feed) -> None:
        self.batch_sampler = batch_sampler
        self.feed = feed
        self.snapshots: deque[Any] = deque()
        self._guard: AbstractContextManager[Any] = feed.guard if feed.guard is not None else nullcontext()
        self._keep = 0
        self._follows = True  # what is taken follows on what is in the head
        self._head: list[list[int]] = []
        self._iterator: Iterator[list[int]] | None = None

    def __iter__(self) -> Iterator[list[int]]:
        if self.feed.guard is None:
            return self._opened()
        return self._guarded()

    def watch(self, keep: int, snapshots: deque[Any]) -> None:
        """Remembers the first ``keep`` batches, and puts the batch sampler's state after each ``take`` into
        ``snapshots`` where the feed asks for it."""
        self._keep, self.snapshots = keep, snapshots

    def take(self, count: int) -> list[list[int]]:
        """The next ``count`` batches, less at the end."""
        with self._guard:
            if self._iterator is None:
                self._iterator = self._opened()
            batches = list(islice(self._iterator, count))
        if self._follows and len(self._head) < self._keep:
            self._head.extend(batches[: self._keep - len(self._head)])
        if self.feed.snapshots and batches:
            self.snapshots.append(self._owner().state_dict())
        return batches

    def left_out(self, count: int) -> Iterator[list[list[int]]]:
        """The batches before the start, ``count`` at a time, for those who must know them; then ``take`` goes on."""
        feed, start = self.feed, 0 if self.feed.restored else self.feed.start.batches
        self.feed = replace(feed, start=Start(), snapshots=False)
        for first in range(0, start, count):
            yield self.take(min(count, start - first))
        self.feed = replace(feed, start=Start())

    def head(self) -> list[list[int]]:
        """The first batches of the epoch, as many as were to be kept."""
        if not self._follows and not self._head:
            inner = self.batch_sampler
            wanted = self._keep * inner.batch_size
            with self._guard:
                indices = _beginning(inner.sampler, wanted, self._head)
            self._head = [indices[i : i + inner.batch_size] for i in range(0, len(indices), inner.batch_size)]
        return self._head

    def _owner(self) -> Any:
        """Whoever has the state: the batch sampler, or the sampler in it."""
        return self.batch_sampler if is_stateful(self.batch_sampler) else self.batch_sampler.sampler

    def _guarded(self) -> Iterator[list[int]]:
        while batches := self.take(1):
            yield batches[0]

    def _opened(self) -> Iterator[list[int]]:
        start, inner = self.feed.start, self.batch_sampler
        if start.at_beginning or self.feed.restored:
            return iter(inner)
        if is_plain(inner) and start.samples is not None:
            indices, seen = _from_index(inner.sampler, start.samples, self._keep * inner.batch_size)
            self._follows = bool(seen)
            if seen:
                self._head = [seen[i : i + inner.batch_size] for i in range(0, len(seen), inner.batch_size)]
            return iter(BatchSampler(_Once(indices), inner.batch_size, inner.drop_last))
        batches: Iterator[list[int]] = iter(inner)
        self._head = list(islice(batches, min(start.batches, self._keep)))
        _discard(batches, start.batches - len(self._head))
        return batches


class _Once:
    """An iterator that may be asked for itself, as a sampler is."""

    def __init__(self, indices: Iterator[int]) -> None:
        self._indices = indices

    def __iter__(self) -> Iterator[int]:
        return self._indices


def _from_index(sampler: Any, start: int, keep: int) -> tuple[Iterator[int], list[int]]:
    """The sampler's indices without the first ``start``, and at most ``keep`` of the first if they were met."""
    if hasattr(sampler, "from_index"):
        return sampler.from_index(start), []
    if type(sampler) is SequentialSampler:
        return iter(range(start, len(sampler.data_source))), []
    indices = iter(sampler)
    seen = list(islice(indices, min(start, keep)))
    _discard(indices, start - len(seen))
    return indices, seen


def _beginning(sampler: Any, count: int, known: list[list[int]]) -> list[int]:
    """The first ``count`` indices of the epoch that is on."""
    if hasattr(sampler, "from_index"):
        if getattr(sampler, "key", None) is not None:
            sampler.forced = sampler.key
        return list(islice(sampler.from_index(0), count))
    if type(sampler) is SequentialSampler:
        return list(range(min(count, len(sampler.data_source))))
    return [index for batch in known for index in batch]


def _discard(iterator: Iterable[Any], count: int) -> None:
    """Runs ``count`` items ahead, in C."""
    deque(islice(iterator, count), maxlen=0)
