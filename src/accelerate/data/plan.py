"""What ``prepare`` decided about one loader, and where it stands: all that a prepared loader has beside its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from accelerate.comm.base import Collectives
from accelerate.comm.placement import send_to_device
from accelerate.data.position import Geometry, Position, Progress, Start
from accelerate.data.sampler import BatchSamplerShard, IndexShard
from accelerate.data.share import Emission

if TYPE_CHECKING:
    from accelerate.data.order import Order

__all__ = ["Plan", "Resumption", "Run", "is_stream", "mover", "own_iteration", "shard_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """How an iteration came to its place, and what has to be kept while it goes on.

    sampler, placed: the sampler, or the stream, is at its place already; nothing is to be left out.
    stream: what to read in place of the dataset, this time.
    keep_sampler: the sampler's own state belongs to the position. snapshot: takes the dataset's or loader's own state.
    """

    sampler: bool = False
    placed: bool = False
    stream: Any = None
    keep_sampler: bool = False
    snapshot: Callable[[], Any] | None = None


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
    counts: deque[list[int]] = field(default_factory=deque)


@dataclass(slots=True, kw_only=True)
class Plan:
    """The decisions, and the position they lead to.

    count, index: the loader is shared out in ``count`` parts, and this rank has part ``index``.
    presharded: each rank's loader holds only its part already.
    skip: batches of this rank that every iteration leaves out (a view by ``skip_first_batches``).
    channel: from the rank that reads for all, where one does. run: the iteration that is on.
    """

    count: int = 1
    index: int = 0
    device: torch.device | None = None
    non_blocking: bool = False
    split_batches: bool = False
    even_batches: bool = True
    drop_last: bool = False
    presharded: bool = False
    skip: int = 0
    rng_types: list[Any] = field(default_factory=list)
    generator: torch.Generator | None = None
    collectives: Collectives | None = None
    order: Order | None = None
    position: Position = field(default_factory=Position)
    move: Callable[[Any], Any] | None = None
    slice_fn: Callable[..., Any] | None = None
    mesh: Any = None
    channel: Any = None
    run: Run | None = None


def mover(device: torch.device | None, non_blocking: bool) -> Callable[[Any], Any] | None:
    """What puts a batch on ``device``; None where everything is there already."""
    if device is None:
        return None
    if device.type == "cpu" and not torch.accelerator.is_available():
        return None  # there is no other place a tensor could come from
    return partial(send_to_device, device=device, non_blocking=non_blocking)


def shard_of(loader: DataLoader[Any]) -> BatchSamplerShard | None:
    """The share of batches (of single indices, where the loader does not make batches) that a loader reads."""
    held: Any = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    if isinstance(held, IndexShard):
        return held.shard
    return held if isinstance(held, BatchSamplerShard) else None


def is_stream(loader: DataLoader[Any]) -> bool:
    """Whether the dataset is iterable and has no indices."""
    return bool(loader._dataset_kind == 1)


def own_iteration(kind: type) -> bool:
    """Whether a class of loader has an ``__iter__`` that is neither torch's, nor torchdata's, nor ours."""
    for base in kind.__mro__:
        if "__iter__" in vars(base) and not base.__module__.startswith(__package__ or ""):
            return not base.__module__.startswith(("torch.", "torchdata."))
    return False
