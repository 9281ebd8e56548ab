"""A loader of which each rank reads its own part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from accelerate.data.iterable import IterableDatasetShard
from accelerate.data.iterate import NOTHING, PreparedLoader, Run
from accelerate.data.order import samplers
from accelerate.data.plan import Plan, mover, shard_of
from accelerate.data.share import Emission

__all__ = ["DataLoaderShard"]


class DataLoaderShard(PreparedLoader):
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
        super().__init__(dataset, use_stateful_dataloader=use_stateful_dataloader, _plan=plan, **kwargs)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names its own iterator class
        run = self._start()
        try:
            if run.emission is None:
                yield from self._fetching_ahead(run)
            elif run.snapshot is not None or run.resumption.keep_sampler:
                yield from self._recording(run, run.emission)
            else:
                yield from self._known(run, run.emission)
            self._plan.position.finish(run.progress)
        finally:
            self._stop(run)

    def _known(self, run: Run, emission: Emission) -> Iterator[Any]:
        """The sampler knows which batch is the last, so none has to be fetched ahead."""
        progress, move = run.progress, self._plan.move
        for batch in run.iterator:
            progress.handed += 1
            if progress.handed == emission.total:
                self._at_last(run)
            yield batch if move is None else move(batch)

    def _recording(self, run: Run, emission: Emission) -> Iterator[Any]:
        """As ``_known``, keeping the state that the sampler or the dataset had after each batch."""
        position = self._plan.position
        for batch in self._known(run, emission):
            if emission.snapshots:
                position.sampler_state = emission.snapshots.popleft()
            if run.snapshot is not None:
                position.data_state = run.snapshot()
            yield batch

    def _fetching_ahead(self, run: Run) -> Iterator[Any]:
        """One batch is fetched ahead, to know the last one. Its state is taken before that."""
        progress, move, position = run.progress, self._plan.move, self._plan.position
        take = run.snapshot
        batch = next(run.iterator, NOTHING)
        while batch is not NOTHING:
            state = None if take is None else take()
            following = next(run.iterator, NOTHING)
            progress.handed += 1
            if take is not None and position.progress is progress:
                position.data_state = state
            if run.counts:
                self.real_counts = run.counts.popleft()
            if following is NOTHING:
                self._at_last(run)
            yield batch if move is None else move(batch)
            batch = following

    def _at_last(self, run: Run) -> None:
        self.end_of_dataloader = True
        shard, emission = shard_of(self), run.emission
        if emission is not None and shard is not None:
            self.remainder = 0 if self._plan.presharded else self._real(emission, run.geometry)
            if self._plan.presharded:
                self.real_counts = _without_repeated(shard.batch_sampler, emission.real)
        elif self.real_counts is not None:
            real = self.real_counts
            in_front = all(real[: len(real) - real.count(0)])
            self.remainder = -1 if not in_front else sum(real) if 0 in real else 0
        elif isinstance(self.dataset, IterableDatasetShard) and self.dataset.real is not None:
            self.remainder = self.dataset.real


def _without_repeated(batch_sampler: Any, last: int) -> list[int] | None:
    """For a sampler that shares out already: how many of each rank's ``last`` samples are not there to fill up; None
    where it fills nothing, or does not tell."""
    for part in samplers(batch_sampler):
        ranks, total, data = (getattr(part, name, None) for name in ("num_replicas", "total_size", "dataset"))
        if ranks and total and data is not None and not getattr(part, "drop_last", False):
            repeated = range(len(data), total)
            return [max(0, last - sum(1 for i in repeated if i % ranks == rank)) for rank in range(ranks)]
    return None
