"""A prepared loader is still the loader it was made from: same class, same attributes, same methods."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from torch.utils.data import DataLoader

from accelerate.data.iterable import IterableDatasetShard
from accelerate.data.order import Order
from accelerate.data.plan import Plan, shard_of
from accelerate.data.position import Geometry
from accelerate.data.sampler import BatchSamplerShard, IndexShard, SkipBatchSampler, get_sampler
from accelerate.data.source import fixed_size
from accelerate.errors import MisplacedArgumentError

__all__ = ["DataLoaderAdapter", "adopt", "check_keywords", "copied", "own_iteration"]

Kind = TypeVar("Kind", bound="DataLoaderAdapter")

_ELSEWHERE = (
    "split_batches",
    "dispatch_batches",
    "even_batches",
    "use_seedable_sampler",
    "data_seed",
    "non_blocking",
    "use_stateful_dataloader",
)


_COMBINED: dict[tuple[type, type], type] = {}


def combined(kind: type[Any], base: type[Any]) -> type[Any]:
    """A class that iterates as ``kind`` does, over what ``base`` gives."""
    if issubclass(kind, base):
        return kind
    if issubclass(base, kind):
        return base
    found = _COMBINED.get((kind, base))
    if found is None:
        ours = base.__module__.startswith(("torch.", "torchdata."))
        name = kind.__name__ if ours else f"{base.__name__}{kind.__name__}"
        found = type(name, (kind, base), {"__module__": kind.__module__, "__doc__": kind.__doc__})
        _COMBINED[kind, base] = found
    return found


def adopt(kind: type[Kind], loader: DataLoader[Any], plan: Plan, **changes: Any) -> Kind:
    """A loader with everything that ``loader`` has, iterated as ``kind`` does. ``loader`` itself stays as it is.

    ``changes`` replaces attributes that torch does not let be assigned to.
    """
    twin: Kind = copied(loader, combined(kind, type(loader)), _plan=plan, **changes)
    twin._set_up()
    return twin


def copied(loader: DataLoader[Any], kind: type[Any], **changes: Any) -> Any:
    """An instance of ``kind`` with the attributes of ``loader``, except for ``changes``."""
    twin = object.__new__(kind)
    twin.__dict__.update(loader.__dict__)
    for slot in (name for base in type(loader).__mro__ for name in getattr(base, "__slots__", ())):
        if hasattr(loader, slot):
            object.__setattr__(twin, slot, getattr(loader, slot))
    twin.__dict__.update(_iterator=None, **changes)
    return twin


def own_iteration(kind: type) -> bool:
    """Whether a class of loader has an ``__iter__`` that is neither torch's, nor torchdata's, nor ours."""
    for base in kind.__mro__:
        if "__iter__" in vars(base) and not base.__module__.startswith(__package__ or ""):
            return not base.__module__.startswith(("torch.", "torchdata."))
    return False


def check_keywords(what: str, keywords: dict[str, Any]) -> None:
    """Raises MisplacedArgumentError where a keyword is none of DataLoader's; the message names the right place."""
    known = [name for name in inspect.signature(DataLoader.__init__).parameters if name != "self"]
    known += ["snapshot_every_n_steps"]
    for name, value in keywords.items():
        if name in known:
            continue
        if name in _ELSEWHERE:
            hint = f"It belongs to DataLoaderConfiguration({name}=…), which goes to Accelerator(dataloader_config=…)."
        else:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {close[0]}=?" if close else f"It takes: {', '.join(known)}."
        raise MisplacedArgumentError(f"{what}() got {name}={value!r}, which it has no use for. {hint}")


class DataLoaderAdapter(DataLoader[Any]):
    """A DataLoader, or torchdata's StatefulDataLoader, that has a :class:`Plan`."""

    _plan: Plan

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """With ``use_stateful_dataloader`` the instance is a StatefulDataLoader too."""
        if kwargs.get("use_stateful_dataloader"):
            from accelerate.data.stateful import stateful_class

            cls = combined(cls, stateful_class())
        return object.__new__(cls)

    def __init__(
        self, dataset: Any, use_stateful_dataloader: bool = False, batch_sampler: Any = None, **kwargs: Any
    ) -> None:
        plan = kwargs.pop("_plan", None) or Plan()
        check_keywords(type(self).__name__, kwargs)
        if batch_sampler is not None:
            kwargs["batch_sampler"] = batch_sampler
        if use_stateful_dataloader:
            from accelerate.data.stateful import quiet

            with quiet():
                super().__init__(dataset, **kwargs)
        else:
            super().__init__(dataset, **kwargs)
        self._plan = plan
        self._set_up()

    def _set_up(self) -> None:
        """Puts a shard, of one rank if need be, around the batch sampler, so that it can begin anywhere."""
        if self._is_stream or shard_of(self) is not None:
            return
        held = self.__dict__
        if held["batch_sampler"] is not None:
            held["batch_sampler"] = BatchSamplerShard(held["batch_sampler"])
        else:
            held["sampler"] = IndexShard(held["sampler"])

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether torchdata's StatefulDataLoader is underneath."""
        from accelerate.data.stateful import is_torchdata

        return is_torchdata(self)

    def _inherited_state(self) -> tuple[Callable[[], Any], Callable[[Any], None]] | None:
        """How the class this loader was made from saves and restores its place, where that decides what it gives."""
        take, load = getattr(super(), "state_dict", None), getattr(super(), "load_state_dict", None)
        if take is None or load is None or not (self._is_stream or own_iteration(type(self))):
            return None
        return take, load

    def _ranks_matter(self) -> bool:
        """Whether a place in the data means something to this number of ranks only."""
        if self._plan.count == 1 or shard_of(self) is not None:
            return False
        if isinstance(self.dataset, IterableDatasetShard) and self._inherited_state() is None:
            return self.dataset.at_source is True or self.num_workers > 0
        return True

    @property
    def _is_stream(self) -> bool:
        return bool(self._dataset_kind == 1)  # the dataset is iterable, and has no indices

    @property
    def iteration(self) -> int:
        """The number of the epoch that is on, or begins next."""
        return self._plan.position.epoch

    def get_sampler(self) -> Any:
        """The sampler of single samples."""
        return get_sampler(self)

    def set_sampler(self, sampler: Any) -> None:
        """Replaces the sampler of single samples."""
        shard = shard_of(self)
        if shard is None:
            self.__dict__["sampler"] = sampler
            return
        held: Any = shard.batch_sampler
        while isinstance(held, (BatchSamplerShard, SkipBatchSampler)):
            held = held.batch_sampler
        held.sampler = sampler
        if self.batch_sampler is not None:
            self.__dict__["sampler"] = sampler
        order = self._plan.order
        if order is not None:
            self._plan.order = Order(shard.batch_sampler, seed=order.seed, agree=order.agree)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is that of ``epoch``; the sampler and the dataset are told where they can be.

        Nobody has to call it: the epoch goes up with every iteration. Naming the epoch that is about to be resumed
        keeps the place in it.
        """
        self._plan.position.set_epoch(epoch)
        inherited = getattr(super(), "set_epoch", None)
        if inherited is not None:
            inherited(epoch)
        self._tell_epoch(epoch)

    def _tell_epoch(self, epoch: int) -> None:
        shard = shard_of(self)
        if shard is not None:
            shard.set_epoch(epoch)
            if self._plan.order is not None:
                self._plan.order.told()
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def _geometry(self) -> Geometry:
        """How one batch of this rank relates to the batches of all. Looked up when needed: a shard can be changed."""
        shard = shard_of(self)
        if shard is not None:
            ranks = self._plan.count if self._plan.presharded else shard.num_processes
            return Geometry(per_step=1 if shard.split_batches else ranks, batch_size=fixed_size(shard))
        size = getattr(self.batch_sampler, "batch_size", 1)
        per_step = self._plan.count
        if self._plan.split_batches:
            per_step, size = 1, size * self._plan.count
        return Geometry(per_step=per_step, batch_size=size)

    @property
    def total_batch_size(self) -> int:
        """Samples that one step of all ranks uses."""
        geometry = self._geometry()
        size = geometry.batch_size
        if size is None:
            size = getattr(self.batch_sampler, "batch_size", None) or 1
        return size * geometry.per_step

    @property
    def total_dataset_length(self) -> int:
        """Samples in the whole dataset."""
        known = getattr(self.dataset, "total_length", None)
        return int(known) if known is not None else len(self.dataset)  # type: ignore[arg-type]

    def adjust_state_dict_for_prefetch(self) -> None:
        """Nothing to adjust: what was fetched ahead of the user is never part of the state."""

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is, in plain values: the epoch, what all ranks have handed out of it, and its seed.

        Not collective. It does not depend on the number of ranks, unless ``per_rank`` in it says so: then
        :meth:`gather_state` makes one record of all.
        """
        from accelerate.data.record import encode

        return encode(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The next iteration gives the rest of the epoch that was on, then the following ones come in their turn.

        Raises:
            CheckpointMismatchError: the state belongs to other data, or to another number of ranks where that matters.
        """
        from accelerate.data.record import restore

        restore(self, state_dict)

    def gather_state(self, collectives: Any = None) -> dict[str, Any]:
        """Collective. The state as one record that every rank can load, on any number of ranks where it can be.

        Raises:
            CollectiveError: the ranks are at different places.
        """
        from accelerate.data.record import gather

        return gather(self, collectives)
