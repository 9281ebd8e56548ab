"""Taking a loader apart and putting it together again as this rank's part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from accelerate.comm import here
from accelerate.comm.base import Collectives
from accelerate.data.adapter import DataLoaderAdapter, adopt
from accelerate.data.dispatch import DataLoaderDispatcher
from accelerate.data.iterable import sharded_at_source, shared_stream
from accelerate.data.order import Order, random_sampler, samplers
from accelerate.data.plan import Plan, mover
from accelerate.data.sampler import BatchSamplerShard, DrawnRandomSampler, IndexShard, SeedableRandomSampler
from accelerate.data.seeds import agree, mix
from accelerate.data.shard import DataLoaderShard
from accelerate.data.skip import SkipDataLoader
from accelerate.data.source import is_plain
from accelerate.errors import PrepareError

__all__ = ["Part", "prepare_data_loader", "prepare_loader"]

_SEEDS = (1 << 63) - 1  # a seed is written as JSON, where no number is unsigned


class Shard(Protocol):
    """Part ``index`` of ``count`` equal parts."""

    @property
    def count(self) -> int: ...

    @property
    def index(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A shard."""

    count: int = 1
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a DataLoaderConfiguration says, read once."""

    split_batches: bool = False
    dispatch_batches: bool | None = None
    even_batches: bool = True
    use_seedable_sampler: bool = True
    data_seed: int | None = None
    non_blocking: bool = False
    use_stateful_dataloader: bool = False
    already_sharded: bool = False

    @classmethod
    def read(cls, config: Any) -> Wishes:
        """The wishes in any object with these attributes."""
        given = {name: getattr(config, name) for name in cls.__slots__ if hasattr(config, name)}
        return cls(**given)


def prepare_loader(
    loader: DataLoader[Any],
    *,
    shard: Shard,
    device: torch.device | None,
    config: Any,
    rng_types: Iterable[Any] | None = None,
    dispatch_collectives: Collectives | None = None,
    slice_fn: Callable[..., Any] | None = None,
    mesh: Any = None,
    siblings: Sequence[Any] = (),
    already_sharded: bool = False,
) -> DataLoader[Any]:
    """Collective where ranks have to agree on a seed. This rank's part of ``loader``; ``loader`` stays as it was.

    config: split_batches, dispatch_batches, even_batches, use_seedable_sampler, data_seed, non_blocking and
    use_stateful_dataloader, as in DataLoaderConfiguration. device: where tensors go; None leaves them. siblings:
    loaders prepared before, whose shuffles this one must not repeat. already_sharded: the loader holds this rank's
    part only; it is also seen from a sampler for as many replicas, or an attribute of that name on loader or dataset.

    Raises:
        PrepareError: the loader cannot be shared out in the way asked for.
    """
    if isinstance(loader, SkipDataLoader):
        raise PrepareError(
            "A loader made by skip_first_batches() was given to prepare(), which would share out what is left of it. "
            "Prepare the loader first, then call skip_first_batches() on the result."
        )
    if isinstance(loader, DataLoaderAdapter):
        return loader
    wishes = Wishes.read(config)
    collectives = dispatch_collectives if dispatch_collectives is not None else here.collectives()
    presharded = shard.count > 1 and (already_sharded or wishes.already_sharded or _is_sharded(loader, shard.count))
    if wishes.use_stateful_dataloader:
        from accelerate.data.stateful import with_state

        loader = with_state(loader)
    _check_split(loader, wishes, shard.count)
    plan = Plan(
        count=shard.count,
        index=shard.index,
        device=device,
        non_blocking=wishes.non_blocking,
        move=mover(device, wishes.non_blocking),
        split_batches=wishes.split_batches and shard.count > 1 and not presharded,
        even_batches=wishes.even_batches,
        drop_last=bool(getattr(loader.batch_sampler, "drop_last", loader.drop_last)),
        presharded=presharded,
        rng_types=[kind for kind in rng_types or () if str(getattr(kind, "value", kind)) != "generator"],
        collectives=collectives,
        slice_fn=slice_fn,
        mesh=mesh,
    )
    changes = _ordered(loader, plan, wishes, siblings)
    changes["_is_accelerate_prepared"] = True
    stream = isinstance(loader.dataset, IterableDataset)
    dispatch = wishes.dispatch_batches if wishes.dispatch_batches is not None else stream
    if dispatch and shard.count > 1 and not presharded:
        return adopt(DataLoaderDispatcher, loader, plan, **changes)
    if stream:
        changes.update(_stream(loader, plan))
    else:
        changes.update(_shared(loader, plan, changes))
    return adopt(DataLoaderShard, loader, plan, **changes)


def _is_sharded(loader: DataLoader[Any], count: int) -> bool:
    """Whether every rank's loader holds a part already.

    Raises:
        PrepareError: it is cut in another number of parts than the job has.
    """
    parts = list(samplers(loader.batch_sampler if loader.batch_sampler is not None else loader.sampler))
    if any(getattr(owner, "already_sharded", False) is True for owner in (loader, loader.dataset, *parts)):
        return True
    for part in parts:
        replicas = getattr(part, "num_replicas", None)
        if not isinstance(replicas, int) or replicas == 1 or not hasattr(part, "rank"):
            continue
        if replicas != count:
            raise PrepareError(
                f"The loader's {type(part).__name__} cuts the data in num_replicas={replicas} parts, but here are "
                f"{count} (processes that share a model see the same data). Leave the sampler out, and prepare() "
                f"shares the loader out; or give it num_replicas={count}."
            )
        return True
    return False


def _check_split(loader: DataLoader[Any], wishes: Wishes, count: int) -> None:
    if not wishes.split_batches or count == 1:
        return
    size = getattr(loader.batch_sampler, "batch_size", None)
    if isinstance(size, int) and size % count:
        raise PrepareError(
            f"split_batches=True shares out each batch, but batch_size={size} cannot be cut into {count} equal parts. "
            f"Make it a multiple of {count}, or use split_batches=False, where each process gets batches of {size}."
        )
    if loader.batch_sampler is None and not wishes.dispatch_batches:
        raise PrepareError(
            "split_batches=True shares out each batch, but this loader makes none (batch_size=None): its entries can "
            "only be shared out whole. Use split_batches=False, or dispatch_batches=True, which cuts what was read."
        )


def _ordered(loader: DataLoader[Any], plan: Plan, wishes: Wishes, siblings: Sequence[Any]) -> dict[str, Any]:
    """Collective where there is anything random. Puts ``plan.order`` in charge of it; returns what to replace."""
    if isinstance(loader.dataset, IterableDataset):
        return {}
    owner: Any = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    ask = None
    if plan.count > 1 and plan.collectives is not None and plan.collectives.size > 1 and not plan.presharded:
        collectives = plan.collectives

        def ask(value: Any) -> Any:
            return collectives.broadcast_objects([value])[0]

    shuffle = next((part for part in samplers(owner) if random_sampler(part)), None)
    known = next((part for part in samplers(owner) if isinstance(part, SeedableRandomSampler)), None)
    seed = None
    if known is not None:
        seed = known.initial_seed
    elif wishes.use_seedable_sampler:
        seed = _seed(shuffle, loader, wishes, siblings)
    changes: dict[str, Any] = {}
    if shuffle is not None:
        changes = _replaced(loader, shuffle, _reordered(shuffle, seed))
        owner = changes.get("batch_sampler", changes["sampler"])
    order = Order(owner, seed=seed, agree=ask)
    if order.is_random and seed is not None:
        order.seed = agree(seed, plan.collectives if ask is not None else None)
    if order.parts:
        plan.order = order
    return changes


def _seed(shuffle: Any, loader: DataLoader[Any], wishes: Wishes, siblings: Sequence[Any]) -> int:
    """The seed of this loader's order. A seed for all loaders is mixed with the loader's place among them, or two
    shuffles over equally many samples would always pair the same ones."""
    own = getattr(shuffle, "generator", None)
    if wishes.data_seed is None and isinstance(own, torch.Generator) and not _is_torchdata(shuffle):
        return own.initial_seed() & _SEEDS
    place = sum(1 for other in siblings if _is_shuffled(other))
    seed = wishes.data_seed if wishes.data_seed is not None else torch.initial_seed() & _SEEDS
    return seed if place == 0 else mix(seed, place)


def _is_torchdata(value: Any) -> bool:
    return type(value).__module__.startswith("torchdata.")  # it makes itself a generator where none was given


def _is_shuffled(loader: Any) -> bool:
    order = loader._accelerate.order if isinstance(loader, DataLoaderAdapter) else None
    return order is not None and order.is_random


def _reordered(shuffle: Any, seed: int | None) -> Any:
    """The shuffle in a form that can be had again."""
    taken = {"replacement": shuffle.replacement, "num_samples": shuffle._num_samples}
    if seed is not None:
        return SeedableRandomSampler(shuffle.data_source, data_seed=seed, **taken)
    own = None if _is_torchdata(shuffle) else shuffle.generator
    return DrawnRandomSampler(shuffle.data_source, generator=own, **taken)


def _replaced(loader: DataLoader[Any], old: Any, new: Any) -> dict[str, Any]:
    """The loader's samplers with ``new`` in place of ``old``. A user's own batch sampler is given it."""
    held: Any = loader.batch_sampler
    if held is None:
        return {"sampler": new}
    if is_plain(held):
        return {"sampler": new, "batch_sampler": BatchSampler(new, held.batch_size, held.drop_last)}
    for part in samplers(held):
        for name, value in vars(part).items() if hasattr(part, "__dict__") else ():
            if value is old:
                setattr(part, name, new)
    return {"sampler": new if loader.sampler is old else loader.sampler, "batch_sampler": held}


def _shared(loader: DataLoader[Any], plan: Plan, changes: dict[str, Any]) -> dict[str, Any]:
    """This rank's share of the indices."""
    ranks, index = (1, 0) if plan.presharded else (plan.count, plan.index)
    held: Any = changes.get("batch_sampler", loader.batch_sampler)
    if held is None:
        sampler = changes.get("sampler", loader.sampler)
        return {"sampler": IndexShard(sampler, ranks, index, plan.even_batches)}
    share = BatchSamplerShard(held, ranks, index, plan.split_batches, plan.even_batches)
    size = loader.batch_size
    return {
        "batch_sampler": share,
        "batch_size": size // ranks if size is not None and plan.split_batches else size,
    }


def _stream(loader: DataLoader[Any], plan: Plan) -> dict[str, Any]:
    """This rank's share of a stream, cut where it comes from if that can be."""
    if plan.count == 1 or plan.presharded:
        return {}
    part = sharded_at_source(loader.dataset, plan.count, plan.index)
    size = 1 if loader.batch_size is None else loader.batch_size
    changes: dict[str, Any] = {}
    if plan.split_batches and loader.batch_size is not None:
        held: Any = loader.batch_sampler
        own = size // plan.count
        changes = {"batch_size": own, "batch_sampler": BatchSampler(held.sampler, own, held.drop_last)}
    if part is not None:
        return {**changes, "dataset": part}
    stream = shared_stream(
        loader.dataset, size, loader.drop_last, plan.count, plan.index, plan.split_batches, plan.even_batches
    )
    return {**changes, "dataset": stream}


def prepare_data_loader(
    dataloader: DataLoader[Any],
    device: torch.device | None = None,
    num_processes: int | None = None,
    process_index: int | None = None,
    split_batches: bool = False,
    put_on_device: bool = False,
    rng_types: list[Any] | None = None,
    dispatch_batches: bool | None = None,
    even_batches: bool = True,
    slice_fn_for_dispatch: Callable[..., Any] | None = None,
    use_seedable_sampler: bool = False,
    data_seed: int | None = None,
    non_blocking: bool = False,
    use_stateful_dataloader: bool = False,
    torch_device_mesh: Any = None,
) -> DataLoader[Any]:
    """Collective where ranks have to agree on a seed. A loader's part for process ``process_index`` of
    ``num_processes`` (this process and its job where None), with tensors on ``device`` if ``put_on_device``.

    Raises:
        PrepareError: the loader cannot be shared out in the way asked for.
    """
    from accelerate.state import PartialState

    if num_processes is None or process_index is None:
        state = PartialState()
        own = _part_of_mesh(torch_device_mesh) or Part(count=state.num_processes, index=state.process_index)
        num_processes = own.count if num_processes is None else num_processes
        process_index = own.index if process_index is None else process_index
    wishes = Wishes(
        split_batches=split_batches,
        dispatch_batches=dispatch_batches,
        even_batches=even_batches,
        use_seedable_sampler=use_seedable_sampler,
        data_seed=data_seed,
        non_blocking=non_blocking,
        use_stateful_dataloader=use_stateful_dataloader,
    )
    return prepare_loader(
        dataloader,
        shard=Part(count=num_processes, index=process_index),
        device=device if put_on_device else None,
        config=wishes,
        rng_types=rng_types,
        slice_fn=slice_fn_for_dispatch,
        mesh=torch_device_mesh,
    )


def _part_of_mesh(mesh: Any) -> Part | None:
    """The part of a rank in a DeviceMesh: ranks that differ in a data-parallel axis only see different data."""
    if mesh is None or not mesh.mesh_dim_names:
        return None
    count, index = 1, 0
    for axis, name in enumerate(mesh.mesh_dim_names):
        if name.startswith("dp"):
            count *= mesh.size(axis)
            index = index * mesh.size(axis) + mesh.get_local_rank(name)
    return Part(count=count, index=index)
