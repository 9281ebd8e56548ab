"""What ``prepare`` decided about one loader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

from accelerate.comm.base import Collectives
from accelerate.comm.placement import send_to_device
from accelerate.data.order import Order
from accelerate.data.position import Position
from accelerate.data.sampler import BatchSamplerShard, IndexShard

__all__ = ["Plan", "mover", "shard_of"]


@dataclass(slots=True, kw_only=True)
class Plan:
    """The decisions, and the position they lead to.

    count, index: the loader is shared out in ``count`` parts, and this rank has part ``index``.
    presharded: each rank's loader holds only its part already.
    skip: batches of this rank that every iteration leaves out (a view by ``skip_first_batches``).
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
