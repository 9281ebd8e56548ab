"""The rest of an epoch, without reading what comes before it where that can be helped."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from accelerate.data.adapter import DataLoaderAdapter, adopt, copied
from accelerate.data.plan import Plan
from accelerate.data.sampler import SkipBatchSampler
from accelerate.data.shard import DataLoaderShard

__all__ = ["SkipDataLoader", "skip_first_batches"]


class SkipDataLoader(DataLoaderShard):
    """A loader that leaves out the first ``skip_batches`` batches of every iteration.

    They are not read where the dataset has indices; a stream is read and dropped. Takes what DataLoader takes.
    """

    def __init__(
        self, dataset: Any, skip_batches: int = 0, use_stateful_dataloader: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(dataset, skip_batches=skip_batches, use_stateful_dataloader=use_stateful_dataloader, **kwargs)

    @property
    def skip_batches(self) -> int:
        """How many batches are left out."""
        return self._accelerate.skip


def skip_first_batches(dataloader: DataLoader[Any], num_batches: int = 0) -> DataLoader[Any]:
    """A loader over what ``dataloader`` gives after its first ``num_batches`` batches (of this rank).

    Everything else is as before: device, sharding, attributes. It is a view of the same place: what it has given counts
    for ``dataloader`` too, whose next iteration is the next epoch. Batches are counted from the beginning of the epoch,
    also after ``load_state``.

    Raises:
        ValueError: ``num_batches`` is negative.
    """
    if num_batches < 0:
        raise ValueError(f"num_batches={num_batches}: so many batches cannot be skipped. Give 0 or more.")
    if isinstance(dataloader, DataLoaderAdapter):
        held = dataloader._accelerate
        plan = dataclasses.replace(held, skip=held.skip + num_batches, run=None)
        return adopt(type(dataloader), dataloader, plan)
    batches: Any = dataloader.batch_sampler
    if batches is None or isinstance(dataloader.dataset, IterableDataset):
        return adopt(SkipDataLoader, dataloader, Plan(skip=num_batches))
    rest: DataLoader[Any] = copied(dataloader, type(dataloader), batch_sampler=SkipBatchSampler(batches, num_batches))
    return rest
