"""One iteration over a prepared loader: where it begins, what it fetches, how it knows the last batch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

import torch

from accelerate.comm.rng import synchronize_rng_states
from accelerate.data.iterable import IterableDatasetShard
from accelerate.data.lockstep import in_step
from accelerate.data.mixin import DataLoaderStateMixin
from accelerate.data.plan import Run, own_iteration, shard_of
from accelerate.data.position import Geometry, Start
from accelerate.data.record import rewind
from accelerate.data.replay import run_ahead
from accelerate.data.seeds import draw, mix
from accelerate.data.share import Emission
from accelerate.data.source import Feed

__all__ = ["NOTHING", "real_samples", "start_run", "stop_run"]

NOTHING = object()


def start_run(loader: Any, reads: bool = True) -> Run:
    """A new iteration over ``loader``. Collective where the order is agreed on when an epoch begins. A rank that does
    not read keeps its place only."""
    plan = loader._accelerate
    position, order = plan.position, plan.order
    if order is not None and (changed := order.changed_epoch()) is not None:
        position.set_epoch(changed)
    geometry = loader._accelerate_sharing.geometry(loader)
    progress = position.begin(Start().after(plan.skip, geometry) if plan.skip else None)
    if plan.rng_types and not progress.resumed:
        synchronize_rng_states(plan.rng_types, plan.generator)
    run = Run(progress=progress, geometry=geometry, start=position.start)
    try:
        if reads:
            _open(loader, run)
    except BaseException:
        progress.running = False
        raise
    plan.run = run
    DataLoaderStateMixin.begin(loader)
    return run


def stop_run(loader: Any, run: Run, exiting: Callable[[], bool] = sys.is_finalizing) -> None:
    """The iteration is over, or left. When the interpreter exits, the modules that would be told are gone already."""
    run.progress.running = False
    if exiting():
        return
    if loader._accelerate.run is run:
        loader._accelerate.run = None
        DataLoaderStateMixin.end(loader)


def real_samples(emission: Emission, geometry: Geometry) -> int:
    """How many different samples the last step has; 0 where it is full."""
    if geometry.batch_size is None:
        return emission.real if emission.filled else 0
    return 0 if emission.real == geometry.per_step * geometry.batch_size else emission.real


def _open(loader: Any, run: Run) -> None:
    """Makes the iterator of this iteration, at its place."""
    plan, shard = loader._accelerate, shard_of(loader)
    position, own = plan.position, own_iteration(type(loader))
    guard = None
    if plan.order is not None:
        position.key, guard = plan.order.begin(position.epoch, position.key)
    elif shard is not None:
        shard.set_epoch(position.epoch)
    if hasattr(loader.dataset, "set_epoch"):
        loader.dataset.set_epoch(position.epoch)
    run.resumption = rewind(loader)
    if shard is not None:
        start = Start() if own else _own_start(loader, run)
        shard.feed = Feed(
            start=start,
            group=loader._accelerate_sharing.group(plan),
            fill=loader._accelerate_sharing.fills(plan),
            guard=guard,
            restored=run.resumption.sampler,
            snapshots=run.resumption.keep_sampler,
        )
        left = shard.batches_after(start)
        run.expected = None if left is None or own else shard.steps(left)
    with _same_seeds(loader, run), _reading(loader, run.resumption.stream):
        made = loader._accelerate_inherited.method(loader, "__iter__")()
        iterator = _stepping(loader) if made is loader else iter(made)
        # The body of a generator begins with the first batch, and so does torch's part in it.
        first = next(iterator, NOTHING) if own else NOTHING
    if shard is not None:
        shard.feed = Feed()
    if own:
        run.iterator = iter(()) if first is NOTHING else _outputs(loader, chain((first,), iterator), run, shard)
    elif shard is not None:
        run.emission, run.iterator = shard.emission, iterator
    else:
        run.iterator = _streamed(loader, iterator, run)


@contextmanager
def _reading(loader: Any, stream: Any) -> Generator[None]:
    """Torch's iterator, when it is made, takes ``stream`` for the dataset."""
    held = loader.__dict__
    dataset = held["dataset"]
    held["dataset"] = dataset if stream is None else stream
    try:
        yield
    finally:
        held["dataset"] = dataset


@contextmanager
def _same_seeds(loader: Any, run: Run) -> Generator[None]:
    """Going on in an epoch draws nothing from the random state, as the workers' seeds were drawn when it began."""
    position, held = loader._accelerate.position, loader.__dict__
    reused = loader.persistent_workers and loader._iterator is not None
    if reused or (not run.progress.resumed and not loader.num_workers):
        yield
        return
    if position.workers is None and not run.progress.resumed:
        position.workers = draw(loader.generator)
    given, held["generator"] = loader.generator, torch.Generator()
    held["generator"].manual_seed(mix(position.workers or 0, loader._accelerate.index))
    try:
        yield
    finally:
        held["generator"] = given


def _own_start(loader: Any, run: Run) -> Start:
    """Where this loader's own sampler goes on."""
    start = run.start
    if not loader._accelerate.presharded:
        return start
    ranks = run.geometry.per_step
    return Start(batches=start.batches // ranks, samples=None if start.samples is None else start.samples // ranks)


def _streamed(loader: Any, iterator: Iterator[Any], run: Run) -> Iterator[Any]:
    plan = loader._accelerate
    if not run.resumption.placed:
        run_ahead(iterator, loader._accelerate_sharing.own_batches(loader, run.start.batches), "batches")
    group = plan.collectives
    if group is None or group.size == 1 or not plan.even_batches or plan.presharded:
        return iterator
    if isinstance(loader.dataset, IterableDatasetShard) and not loader.num_workers:
        first = next(iterator, NOTHING)  # with it the dataset shows whether it divides itself
        iterator = iter(()) if first is NOTHING else chain((first,), iterator)
    if not loader._accelerate_sharing.ranks_matter(loader):
        return iterator
    return in_step(iterator, getattr(group, "control", None) or group, run.counts.append)


def _outputs(loader: Any, iterator: Iterator[Any], run: Run, shard: Any) -> Iterator[Any]:
    """The batches of a loader that makes them itself. If it does not take its indices from the sampler, every rank runs
    through all of them and keeps its own."""
    ranks = 1 if shard is None else shard.num_processes
    if ranks > 1 and not shard.emission.started:
        return _every(iterator, run.start.batches, shard)
    if not run.resumption.placed:
        run_ahead(iterator, loader._accelerate_sharing.own_batches(loader, run.start.batches), "batches")
    return iterator


def _stepping(loader: Any) -> Iterator[Any]:
    """The batches of a loader that is its own iterator: ``iter`` of it would begin here again."""
    while True:
        try:
            batch = loader.__next__()
        except StopIteration:
            return
        yield batch


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
