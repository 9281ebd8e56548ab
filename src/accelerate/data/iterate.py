"""One iteration over a prepared loader: where it begins, what it fetches, how it knows the last batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import torch

from accelerate.comm.rng import synchronize_rng_states
from accelerate.data.adapter import DataLoaderAdapter, own_iteration
from accelerate.data.iterable import IterableDatasetShard
from accelerate.data.lockstep import in_step
from accelerate.data.mixin import DataLoaderStateMixin
from accelerate.data.plan import shard_of
from accelerate.data.position import Geometry, Progress, Start
from accelerate.data.record import Resumption, rewind
from accelerate.data.replay import run_ahead
from accelerate.data.seeds import draw, mix
from accelerate.data.share import Emission
from accelerate.data.source import Feed

__all__ = ["NOTHING", "PreparedLoader", "Run"]

NOTHING = object()


@dataclass(slots=True, kw_only=True)
class Run:
    """One iteration.

    emission: what the sampler tells about it, where that tells everything; otherwise one batch is fetched ahead.
    expected: batches this rank is going to get, where that can be known.
    counts: for each batch fetched, how many samples every rank really has in it, where ranks keep in step.
    """

    progress: Progress
    geometry: Geometry
    start: Start
    resumption: Resumption = field(default_factory=Resumption)
    iterator: Iterator[Any] = field(default_factory=lambda: iter(()))
    emission: Emission | None = None
    expected: int | None = None
    snapshot: Callable[[], Any] | None = None
    counts: deque[list[int]] = field(default_factory=deque)


class PreparedLoader(DataLoaderAdapter, DataLoaderStateMixin):
    """What the loaders of both ways of sharing have in common."""

    _run: Run | None = None

    @property
    def batches_left(self) -> int | None:
        """How many batches come after the one that was handed out last; None where that is not known."""
        run = self._run
        if run is None:
            return None
        total = run.expected if run.emission is None or run.emission.total is None else run.emission.total
        return None if total is None else max(0, total - run.progress.handed)

    def __len__(self) -> int:
        return max(0, super().__len__() - self._plan.skip)

    def _start(self, reads: bool = True) -> Run:
        """A new iteration. Collective where the order is agreed on when an epoch begins. A rank that does not read
        keeps its place only."""
        plan = self._plan
        position, order = plan.position, plan.order
        if order is not None and (changed := order.changed_epoch()) is not None:
            position.set_epoch(changed)
        geometry = self._geometry()
        view = Start().after(plan.skip, geometry) if plan.skip else None
        progress = position.begin(view)
        if plan.rng_types:
            synchronize_rng_states(plan.rng_types, plan.generator)
        run = Run(progress=progress, geometry=geometry, start=position.start)
        self._run = run
        if reads:
            run.resumption = rewind(self)
            self._open(run)
        self.begin()
        return run

    def _stop(self, run: Run) -> None:
        run.progress.running = False
        if self._run is run:
            self._run = None
            self.end()

    def _open(self, run: Run) -> None:
        """Makes the iterator of this iteration, at its place."""
        plan, shard = self._plan, shard_of(self)
        ours = own_iteration(type(self))
        guard = None
        if plan.order is not None:
            plan.position.key, guard = plan.order.begin(plan.position.epoch, plan.position.key)
        elif shard is not None:
            shard.set_epoch(plan.position.epoch)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(plan.position.epoch)
        if shard is not None:
            start = Start() if ours else self._own_start(run.start, run.geometry)
            shard.feed = Feed(
                start=start,
                group=self._group(),
                fill=self._fills(),
                guard=guard,
                restored=run.resumption.sampler,
                snapshots=run.resumption.keep_sampler,
            )
            left = shard.batches_after(start)
            run.expected = None if left is None or ours else shard.steps(left)
        with self._same_seeds(run), self._reading(run.resumption.stream):
            iterator = self._fetch()
            if ours:
                # Its body begins with the first batch, and so does torch's part in it.
                first = next(iterator, NOTHING)
        if shard is not None:
            shard.feed = Feed()
        if ours:
            run.iterator = self._outputs(chain((first,), iterator), run, shard) if first is not NOTHING else iter(())
        elif shard is not None:
            run.emission, run.iterator = shard.emission, iterator
        else:
            run.iterator = self._streamed(iterator, run)
        run.snapshot = run.resumption.snapshot

    @contextmanager
    def _reading(self, stream: Any) -> Generator[None]:
        """Torch's iterator, when it is made, takes ``stream`` for the dataset."""
        held = self.__dict__
        dataset = held["dataset"]
        held["dataset"] = dataset if stream is None else stream
        try:
            yield
        finally:
            held["dataset"] = dataset

    def _group(self) -> int:
        """Base batches that are fetched for one step."""
        return 1

    def _fills(self) -> bool:
        """Whether the batch sampler makes the last step full although it gives all batches to this rank."""
        return False

    def _fetch(self) -> Iterator[Any]:
        return iter(super().__iter__())

    def _real(self, emission: Emission, geometry: Geometry) -> int:
        """How many different samples the last step has; 0 where it is full."""
        if geometry.batch_size is None:
            return emission.real if emission.filled else 0
        return 0 if emission.real == geometry.per_step * geometry.batch_size else emission.real

    def _own_start(self, start: Start, geometry: Geometry) -> Start:
        """``start`` in the batches that this loader's own sampler gives."""
        if not self._plan.presharded:
            return start
        ranks = geometry.per_step
        return Start(batches=start.batches // ranks, samples=None if start.samples is None else start.samples // ranks)

    def _streamed(self, iterator: Iterator[Any], run: Run) -> Iterator[Any]:
        if not run.resumption.placed:
            run_ahead(iterator, self._own_batches(run), "batches")
        group = self._plan.collectives
        if group is None or group.size == 1 or not self._plan.even_batches or self._plan.presharded:
            return iterator
        if isinstance(self.dataset, IterableDatasetShard) and not self.num_workers:
            first = next(iterator, NOTHING)  # with it the dataset shows whether it divides itself
            iterator = iter(()) if first is NOTHING else chain((first,), iterator)
        if not self._ranks_matter():
            return iterator
        return in_step(iterator, getattr(group, "control", None) or group, run.counts.append)

    def _own_batches(self, run: Run) -> int:
        """Batches that this loader itself has given before the place where it goes on."""
        return run.start.batches // run.geometry.per_step

    def _outputs(self, iterator: Iterator[Any], run: Run, shard: Any) -> Iterator[Any]:
        """The batches of a loader that makes them itself. If it does not take its indices from the sampler, every rank
        runs through all of them and keeps its own."""
        ranks = 1 if shard is None else shard.num_processes
        if ranks > 1 and not shard.emission.started:
            return _every(iterator, run.start.batches, shard)
        if not run.resumption.placed:
            run_ahead(iterator, self._own_batches(run), "batches")
        return iterator

    @contextmanager
    def _same_seeds(self, run: Run) -> Generator[None]:
        """Going on in an epoch draws nothing from the random state, as the workers' seeds were drawn when it began."""
        position, held = self._plan.position, self.__dict__
        reused = self.persistent_workers and self._iterator is not None
        if reused or (not run.progress.resumed and not self.num_workers):
            yield
            return
        if position.workers is None and (not run.progress.resumed):
            position.workers = draw(self.generator)
        given, held["generator"] = self.generator, torch.Generator()
        held["generator"].manual_seed(mix(position.workers or 0, self._plan.index))
        try:
            yield
        finally:
            held["generator"] = given


def _every(iterator: Iterator[Any], start: int, shard: Any) -> Iterator[Any]:
    """Of ``shard.num_processes`` batches in a row the one of this rank; a short last row is filled or dropped."""
    ranks, index = shard.num_processes, shard.process_index
    run_ahead(iterator, start, "batches")
    head: list[Any] = []
    while row := list(islice(iterator, ranks)):
        head = head or row
        if len(row) < ranks:
            if shard.drop_last:
                return
            if shard.even_batches:
                row += [head[i % len(head)] for i in range(ranks - len(row))]
        if index < len(row):
            yield row[index]
