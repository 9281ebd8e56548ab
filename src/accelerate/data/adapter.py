"""A prepared loader is still the loader it was made from: same class, same attributes, same methods.

All that this package adds to an instance is in ``_accelerate``, and what it adds to a class gives way to a method or
attribute that the user's class has under the same name, except for iterating, length, epoch and state.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from torch.utils.data import DataLoader

from accelerate.data.order import Order
from accelerate.data.plan import Plan, is_stream, shard_of
from accelerate.data.sampler import BatchSamplerShard, IndexShard, SkipBatchSampler, get_sampler
from accelerate.data.sharing import Inherited, Sharing
from accelerate.errors import MisplacedArgumentError

__all__ = ["DataLoaderAdapter", "adopt", "check_keywords", "copied", "shown", "tell_epoch"]

Kind = TypeVar("Kind", bound="DataLoaderAdapter")
Value = TypeVar("Value")

_ELSEWHERE = (
    "split_batches",
    "dispatch_batches",
    "even_batches",
    "use_seedable_sampler",
    "data_seed",
    "non_blocking",
    "use_stateful_dataloader",
)
_YIELDING = (
    "adjust_state_dict_for_prefetch",
    "batches_left",
    "begin",
    "device",
    "end",
    "gather_state",
    "get_sampler",
    "gradient_state",
    "iteration",
    "reset",
    "set_sampler",
    "total_batch_size",
    "total_dataset_length",
    "use_stateful_dataloader",
)
_COMBINED: dict[tuple[type, type], type] = {}


class shown(Generic[Value]):
    """A read-only property that an attribute of the instance hides."""

    def __init__(self, read: Callable[[Any], Value]) -> None:
        self._read = read
        self.__doc__ = read.__doc__

    def __get__(self, loader: Any, owner: type | None = None) -> Any:
        return self if loader is None else self._read(loader)


def combined(kind: type[Any], base: type[Any]) -> type[Any]:
    """A class that iterates as ``kind`` does, over what ``base`` gives."""
    if issubclass(kind, base):
        return kind
    if issubclass(base, kind):
        return base
    found = _COMBINED.get((kind, base))
    if found is None:
        foreign = base.__module__.startswith(("torch.", "torchdata."))
        names = {"__module__": kind.__module__, "__doc__": kind.__doc__}
        if not foreign:
            names.update((name, getattr(base, name)) for name in _YIELDING if hasattr(base, name))
        found = type(kind.__name__ if foreign else f"{base.__name__}{kind.__name__}", (kind, base), names)
        _COMBINED[kind, base] = found
    return found


def adopt(kind: type[Kind], loader: DataLoader[Any], plan: Plan, **changes: Any) -> Kind:
    """A loader with everything that ``loader`` has, iterated as ``kind`` does. ``loader`` itself stays as it is.

    ``changes`` replaces attributes that torch does not let be assigned to.
    """
    twin: Kind = copied(loader, combined(kind, type(loader)), _accelerate=plan, **changes)
    _set_up(twin)
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


def _set_up(loader: DataLoaderAdapter) -> None:
    """Puts a shard, of one rank if need be, around the batch sampler, so that it can begin anywhere."""
    if is_stream(loader) or shard_of(loader) is not None:
        return
    held = loader.__dict__
    if held["batch_sampler"] is not None:
        held["batch_sampler"] = BatchSamplerShard(held["batch_sampler"])
    else:
        held["sampler"] = IndexShard(held["sampler"])


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


def tell_epoch(loader: DataLoaderAdapter, epoch: int) -> None:
    """Tells the samplers and the dataset of a loader, where they can be told."""
    shard, order = shard_of(loader), loader._accelerate.order
    if shard is not None:
        shard.set_epoch(epoch)
        if order is not None:
            order.told()
    if hasattr(loader.dataset, "set_epoch"):
        loader.dataset.set_epoch(epoch)


class DataLoaderAdapter(DataLoader[Any]):
    """A DataLoader, or torchdata's StatefulDataLoader, that knows where it is."""

    _accelerate: Plan
    _accelerate_sharing: Sharing = Sharing()
    _accelerate_inherited: Inherited

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """With ``use_stateful_dataloader`` the instance is a StatefulDataLoader too."""
        if kwargs.get("use_stateful_dataloader"):
            from accelerate.data.stateful import stateful_class

            cls = combined(cls, stateful_class())
        return object.__new__(cls)

    def __init__(
        self, dataset: Any, use_stateful_dataloader: bool = False, batch_sampler: Any = None, **kwargs: Any
    ) -> None:
        plan = kwargs.pop("_accelerate", None) or Plan()
        check_keywords(type(self).__name__, kwargs)
        if batch_sampler is not None:
            kwargs["batch_sampler"] = batch_sampler
        if use_stateful_dataloader:
            from accelerate.data.stateful import quiet

            with quiet():
                super().__init__(dataset, **kwargs)
        else:
            super().__init__(dataset, **kwargs)
        self._accelerate = plan
        _set_up(self)

    def __len__(self) -> int:
        return max(0, super().__len__() - self._accelerate.skip)

    @shown
    def device(self) -> Any:
        """Where tensors are put; None where they stay."""
        return self._accelerate.device

    @shown
    def iteration(self) -> int:
        """The number of the epoch that is on, or begins next."""
        return self._accelerate.position.epoch

    @shown
    def use_stateful_dataloader(self) -> bool:
        """Whether torchdata's StatefulDataLoader is underneath."""
        from accelerate.data.stateful import is_torchdata

        return is_torchdata(self)

    @shown
    def batches_left(self) -> int | None:
        """How many batches come after the one that was handed out last; None where that is not known."""
        return self._accelerate_sharing.batches_left(self)

    @shown
    def total_batch_size(self) -> int:
        """Samples that one step of all ranks uses."""
        geometry = self._accelerate_sharing.geometry(self)
        size = geometry.batch_size
        if size is None:
            size = getattr(self.batch_sampler, "batch_size", None) or 1
        return size * geometry.per_step

    @shown
    def total_dataset_length(self) -> int:
        """Samples in the whole dataset."""
        known = getattr(self.dataset, "total_length", None)
        return int(known) if known is not None else len(self.dataset)  # type: ignore[arg-type]

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
        order = self._accelerate.order
        if order is not None:
            self._accelerate.order = Order(shard.batch_sampler, seed=order.seed, agree=order.agree)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is that of ``epoch``; the sampler and the dataset are told where they can be.

        Nobody has to call it: the epoch goes up with every iteration. Naming the epoch that is about to be resumed
        keeps the place in it.
        """
        self._accelerate.position.set_epoch(epoch)
        own = self._accelerate_inherited.method(self, "set_epoch")
        if own is not None:
            own(epoch)
        tell_epoch(self, epoch)

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


DataLoaderAdapter._accelerate_inherited = Inherited(DataLoaderAdapter)
