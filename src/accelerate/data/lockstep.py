"""Ranks whose parts differ in length, kept at the same number of batches: each says before every batch whether it has
one of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from accelerate.comm.base import Collectives
from accelerate.comm.nested import ignorant_find_batch_size
from accelerate.errors import PrepareError

__all__ = ["in_step"]


def in_step(iterator: Iterator[Any], collectives: Collectives, told: Callable[[list[int]], None]) -> Iterator[Any]:
    """Collective before every batch. The entries of ``iterator``, then its first one again until no rank has more.

    ``told`` gets how many samples each rank's batch really has; 0 where it is one that was there before.

    Raises:
        PrepareError: a rank has nothing at all while others have something.
    """
    nothing = object()
    first = nothing
    while True:
        batch = next(iterator, nothing)
        size = 0 if batch is nothing else ignorant_find_batch_size(batch) or 1
        counts = collectives.all_gather(torch.tensor([size])).view(-1).tolist()
        if not any(counts):
            return
        if first is nothing:
            empty = [rank for rank, count in enumerate(counts) if not count]
            if empty:
                raise PrepareError(
                    f"Rank {empty[0]} got nothing from the dataset while others did: it has less pieces than there are "
                    f"ranks ({len(counts)}). Use dispatch_batches=True, which lets the main process read for all."
                )
            first = batch
        told(counts)
        yield first if batch is nothing else batch
