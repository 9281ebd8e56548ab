"""How a loader's batches relate to those of all ranks, where every rank reads its own part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelerate.data.iterable import IterableDatasetShard
from accelerate.data.plan import Plan, is_stream, own_iteration, shard_of
from accelerate.data.position import Geometry
from accelerate.data.source import fixed_size

__all__ = ["Inherited", "Sharing"]


class Inherited:
    """What the class that a loader was made from does, below the classes of this package."""

    def __init__(self, above: type) -> None:
        self._above = above

    def method(self, loader: Any, name: str) -> Any:
        """A method of that class, bound; None where it has none."""
        return getattr(super(self._above, loader), name, None)

    def state(self, loader: Any) -> tuple[Callable[[], Any], Callable[[Any], None]] | None:
        """How that class saves and restores its place, where that decides what it gives."""
        take, give = self.method(loader, "state_dict"), self.method(loader, "load_state_dict")
        if take is None or give is None or not (is_stream(loader) or own_iteration(type(loader))):
            return None
        return take, give


class Sharing:
    """Every rank reads its own part."""

    def geometry(self, loader: Any) -> Geometry:
        """How one batch of this rank relates to the batches of all. Looked up when needed: a shard can be changed."""
        plan, shard = loader._accelerate, shard_of(loader)
        if shard is not None:
            ranks = plan.count if plan.presharded else shard.num_processes
            return Geometry(per_step=1 if shard.split_batches else ranks, batch_size=fixed_size(shard))
        size = getattr(loader.batch_sampler, "batch_size", 1)
        if plan.split_batches:
            return Geometry(per_step=1, batch_size=size * plan.count)
        return Geometry(per_step=plan.count, batch_size=size)

    def group(self, plan: Plan) -> int:
        """Base batches that are fetched for one step."""
        return 1

    def fills(self, plan: Plan) -> bool:
        """Whether the batch sampler makes the last step full although it gives all batches to this rank."""
        return False

    def own_batches(self, loader: Any, batches: int) -> int:
        """How many batches this rank's loader itself has given when all have given ``batches`` base batches."""
        return batches // self.geometry(loader).per_step

    def ranks_matter(self, loader: Any) -> bool:
        """Whether a place in the data means something to this number of ranks only."""
        if loader._accelerate.count == 1 or shard_of(loader) is not None:
            return False
        if isinstance(loader.dataset, IterableDatasetShard) and loader._accelerate_inherited.state(loader) is None:
            return loader.dataset.at_source is True or loader.num_workers > 0
        return True

    def batches_left(self, loader: Any) -> int | None:
        """How many batches come after the one that was handed out last; None where that is not known."""
        run = loader._accelerate.run
        if run is None:
            return None
        total = run.expected if run.emission is None or run.emission.total is None else run.emission.total
        return None if total is None else max(0, total - run.progress.handed)
