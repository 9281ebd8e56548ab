"""A loader of which each rank reads its own part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from accelerate.data.adapter import DataLoaderAdapter
from accelerate.data.iterable import IterableDatasetShard
from accelerate.data.iterate import NOTHING, real_samples, start_run, stop_run
from accelerate.data.mixin import DataLoaderStateMixin
from accelerate.data.order import samplers
from accelerate.data.plan import Plan, Run, mover, shard_of
from accelerate.data.share import Emission

__all__ = ["DataLoaderShard"]


class DataLoaderShard(DataLoaderAdapter, DataLoaderStateMixin):
    """This rank's part of a loader, with its tensors on ``device``.

    Takes what DataLoader takes; a ``batch_sampler`` or ``dataset`` is expected to be this rank's share already.
    ``synchronized_generator`` is a generator that ``rng_types`` keeps in step; ``skip_batches`` are left out of every
    iteration without being read; ``iteration`` is the epoch to begin with.
    """

    def __init__(
        self,
        dataset: Any,
        device: torch.device | None = None,
        rng_types: list[Any] | None = None,
        synchronized_generator: torch.Generator | None = None,
        skip_batches: int = 0,
        use_stateful_dataloader: bool = False,
        _drop_last: bool = False,
        _non_blocking: bool = False,
        torch_device_mesh: Any = None,
        iteration: int = 0,
        **kwargs: Any,
    ) -> None:
        plan = Plan(
            device=device,
            non_blocking=_non_blocking,
            move=mover(device, _non_blocking),
            rng_types=list(rng_types or ()),
            generator=synchronized_generator,
            skip=skip_batches,
            drop_last=_drop_last,
            mesh=torch_device_mesh,
        )
        plan.position.epoch = iteration
        super().__init__(dataset, use_stateful_dataloader=use_stateful_dataloader, _accelerate=plan, **kwargs)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names its own iterator class
        run, stop = start_run(self), stop_run  # no global is there any more when the interpreter exits
        try:
            if run.emission is None:
                yield from _fetching_ahead(self, run)
            elif run.resumption.snapshot is not None or run.resumption.keep_sampler:
                yield from _recording(self, run, run.emission)
            else:
                yield from _known(self, run, run.emission)
            self._accelerate.position.finish(run.progress)
        finally:
            stop(self, run)


def _known(loader: DataLoaderShard, run: Run, emission: Emission) -> Iterator[Any]:
    """The sampler knows which batch is the last, so none has to be fetched ahead."""
    progress, move = run.progress, loader._accelerate.move
    for batch in run.iterator:
        progress.handed += 1
        if progress.handed == emission.total:
            _at_last(loader, run)
        yield batch if move is None else move(batch)


def _recording(loader: DataLoaderShard, run: Run, emission: Emission) -> Iterator[Any]:
    """As ``_known``, keeping the state that the sampler or the dataset had after each batch."""
    position, take = loader._accelerate.position, run.resumption.snapshot
    for batch in _known(loader, run, emission):
        if position.progress is run.progress:
            if emission.snapshots:
                position.sampler_state = emission.snapshots.popleft()
            if take is not None:
                position.data_state = take()
        yield batch


def _fetching_ahead(loader: DataLoaderShard, run: Run) -> Iterator[Any]:
    """One batch is fetched ahead, to know the last one. The state is taken before that."""
    progress, move, position = run.progress, loader._accelerate.move, loader._accelerate.position
    take = run.resumption.snapshot
    batch = next(run.iterator, NOTHING)
    while batch is not NOTHING:
        state = None if take is None else take()
        following = next(run.iterator, NOTHING)
        progress.handed += 1
        if take is not None and position.progress is progress:
            position.data_state = state
        if run.counts:
            loader.real_counts = run.counts.popleft()
        if following is NOTHING:
            _at_last(loader, run)
        yield batch if move is None else move(batch)
        batch = following


def _at_last(loader: DataLoaderShard, run: Run) -> None:
    loader.end_of_dataloader = True
    shard, emission, counts = shard_of(loader), run.emission, loader.real_counts
    if emission is not None and shard is not None:
        if loader._accelerate.presharded:
            loader.remainder = 0
            loader.real_counts = _without_repeated(shard.batch_sampler, emission.real)
        else:
            loader.remainder = real_samples(emission, run.geometry)
    elif counts is not None:
        in_front = all(counts[: len(counts) - counts.count(0)])
        loader.remainder = -1 if not in_front else sum(counts) if 0 in counts else 0
    elif isinstance(loader.dataset, IterableDatasetShard) and loader.dataset.real is not None:
        loader.remainder = loader.dataset.real


def _without_repeated(batch_sampler: Any, last: int) -> list[int] | None:
    """For a sampler that shares out already: how many of each rank's ``last`` samples are not there to fill up; None
    where it fills nothing, or does not tell."""
    for part in samplers(batch_sampler):
        ranks, total, data = (getattr(part, name, None) for name in ("num_replicas", "total_size", "dataset"))
        if ranks and total and data is not None and not getattr(part, "drop_last", False):
            repeated = range(len(data), total)
            return [max(0, last - sum(1 for i in repeated if i % ranks == rank)) for rank in range(ranks)]
    return None
