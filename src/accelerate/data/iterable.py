"""Streams shared out: at their source where the dataset can do that, else item by item."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from itertools import chain, cycle, islice
from typing import Any

import torch
from torch.utils.data import IterableDataset

from accelerate.data.replay import run_ahead
from accelerate.data.source import is_stateful
from accelerate.errors import PrepareError

__all__ = ["IterableDatasetShard", "LaterStream", "StatefulIterableDatasetShard", "sharded_at_source", "shared_stream"]


def sharded_at_source(dataset: Any, count: int, index: int) -> Any | None:
    """This rank's part of a dataset that can cut itself by ``shard(num_shards, index)``, else None.

    A dataset that says how many pieces it has is cut only where every rank gets one.
    """
    shard = getattr(dataset, "shard", None)
    if not callable(shard):
        return None
    try:
        names = inspect.signature(shard).parameters
    except (TypeError, ValueError):
        return None
    if "num_shards" not in names or "index" not in names:
        return None
    pieces = getattr(dataset, "num_shards", getattr(dataset, "n_shards", None))
    if isinstance(pieces, int) and pieces < count:
        return None
    return shard(num_shards=count, index=index)


def shared_stream(
    dataset: Any, batch_size: int, drop_last: bool, count: int, index: int, split: bool, even: bool
) -> IterableDatasetShard:
    """The shard of ``dataset`` for this rank; one with a state where the dataset has a state."""
    kind = StatefulIterableDatasetShard if is_stateful(dataset) else IterableDatasetShard
    stream = kind(dataset, batch_size, drop_last, count, index, split)
    stream.even_batches = even
    return stream


class _SharedWorkerInfo:
    """What ``get_worker_info()`` says while a shard is read: the workers of all ranks, numbered through.

    A dataset that divides itself among workers then divides itself among ranks too; ``asked`` tells whether it did.
    """

    def __init__(self, real: Any, dataset: Any, count: int, index: int) -> None:
        self._real = real
        local, workers = (0, 1) if real is None else (real.id, real.num_workers)
        self.asked = False
        self.id = index * workers + local
        self._num_workers = count * workers
        self.seed = torch.initial_seed() if real is None else real.seed
        self.dataset = dataset

    @property
    def num_workers(self) -> int:
        self.asked = True
        return self._num_workers

    def __getattr__(self, name: str) -> Any:
        if name == "_real":
            raise AttributeError(name)
        return getattr(self._real, name)


class _Told:
    """A context in which ``get_worker_info()`` gives the workers of all ranks."""

    def __init__(self, dataset: Any, count: int, index: int) -> None:
        self._module: Any = sys.modules["torch.utils.data._utils.worker"]
        self._real = self._module._worker_info
        self.info = _SharedWorkerInfo(self._real, dataset, count, index)

    def __enter__(self) -> None:
        self._module._worker_info = self.info

    def __exit__(self, *exc: object) -> None:
        self._module._worker_info = self._real


class IterableDatasetShard(IterableDataset[Any]):
    """One rank's items of an iterable dataset.

    A dataset that asks ``torch.utils.data.get_worker_info()`` how many there are shares is told so for all ranks, and
    reads its part only. Any other is read whole, and of every ``batch_size * num_processes`` items (``batch_size`` with
    ``split_batches``) a rank keeps its own; a short last group is filled from the beginning, or dropped.

    start: items that all ranks together leave out. It holds for the next iteration.
    at_source: after the first item, whether the dataset divides itself.
    """

    def __init__(
        self,
        dataset: IterableDataset[Any],
        batch_size: int = 1,
        drop_last: bool = False,
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
    ) -> None:
        if split_batches and batch_size % num_processes:
            raise PrepareError(
                f"split_batches=True shares out each batch, but a batch of {batch_size} cannot be cut into "
                f"{num_processes} equal parts. Make batch_size a multiple of {num_processes}."
            )
        self.dataset = dataset
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.num_processes = num_processes
        self.process_index = process_index
        self.split_batches = split_batches
        self.even_batches = True
        self.epoch = 0
        self.start = 0
        self.at_source: bool | None = None
        self.real: int | None = None
        self._read_from = 0

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on to the dataset, where it takes one."""
        self.epoch = epoch
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        length, group = len(self.dataset), self._group  # type: ignore[arg-type]  # not every stream has a length
        groups = length // group if self.drop_last else -(-length // group)
        return groups * (group // self.num_processes)

    def __getattr__(self, name: str) -> Any:
        if name == "dataset" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)

    @property
    def _group(self) -> int:
        return self.batch_size if self.split_batches else self.batch_size * self.num_processes

    def __iter__(self) -> Iterator[Any]:
        start, self.start = self.start, 0
        at, self._read_from = self._read_from, 0
        told = _Told(self.dataset, self.num_processes, self.process_index)
        with told:
            items = iter(self.dataset)
        self._mark(at)
        end = object()
        with told:
            first = next(items, end)
        self.at_source = told.info.asked
        if first is end:
            self.real = 0
            return
        if not self.at_source:
            yield from self._own(chain((first,), items), start, at)
            return
        for _ in range(start // self.num_processes):
            if first is not end:
                with told:
                    first = next(items, end)
        while first is not end:
            yield first
            with told:
                first = next(items, end)

    def _own(self, items: Iterator[Any], start: int, at: int) -> Iterator[Any]:
        """Every item is read; the ones of this rank are given."""
        group, share = self._group, self._group // self.num_processes
        low, high = self.process_index * share, (self.process_index + 1) * share
        head: list[Any] = list(islice(items, min(max(0, start - at), group)))
        run_ahead(items, max(0, start - at - len(head)), "items")
        place, held = 0, []
        position = max(start, at)
        for item in items:
            if len(head) < group:
                head.append(item)
            if self.drop_last:
                if low <= place < high:
                    held.append(item)
            elif low <= place < high:
                yield item
            place += 1
            if place == group:
                position += group
                place = 0
                self._mark(position)
                yield from held
                held = []
        self.real = place
        if place and not self.drop_last and self.even_batches:
            filled = list(islice(cycle(head), group - place))
            yield from filled[max(0, low - place) : max(0, high - place)]

    def _mark(self, position: int) -> None:
        """Remembers the dataset's own state at a place where every rank begins a batch."""


class LaterStream(IterableDataset[Any]):
    """A stream without its first ``start`` items."""

    def __init__(self, dataset: Any, start: int) -> None:
        self._dataset = dataset
        self._start = start

    def __iter__(self) -> Iterator[Any]:
        items: Iterator[Any] = iter(self._dataset)
        run_ahead(items, self._start, "items")
        return items


class StatefulIterableDatasetShard(IterableDatasetShard):
    """The shard of a dataset that has ``state_dict`` and ``load_state_dict``."""

    _marked: tuple[int, Any] | None = None

    def _mark(self, position: int) -> None:
        self._marked = position, self.dataset.state_dict()  # type: ignore[attr-defined]  # is_stateful has looked

    def state_dict(self) -> dict[str, Any]:
        """The dataset's state, and at how many items of the whole stream it was taken, unless that is right here."""
        dataset: Any = self.dataset
        if self.at_source:
            return {"dataset": dataset.state_dict()}
        at, state = self._marked or (self._read_from, dataset.state_dict())
        return {"at": at, "dataset": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration begins there, which is at ``start`` (set before) where the state does not tell."""
        dataset: Any = self.dataset
        dataset.load_state_dict(state["dataset"])
        self._read_from = state.get("at", self.start)
