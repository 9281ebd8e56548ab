"""The state of a loader: written, read back, and brought together from all ranks.

``epoch``, ``batches`` and ``samples`` say how much of which epoch all ranks together have handed out, in batches of the
loader before it was shared out; ``seed`` (or ``key``) says in what order. None of them depends on how many ranks there
are. What a dataset, sampler or loader tells about itself stands beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from accelerate.comm import here
from accelerate.data.adapter import tell_epoch
from accelerate.data.iterable import IterableDatasetShard, LaterStream
from accelerate.data.order import samplers
from accelerate.data.plan import Resumption, is_stream, shard_of
from accelerate.data.position import Geometry, Start
from accelerate.data.seeds import decoded, encoded
from accelerate.data.source import is_stateful
from accelerate.errors import CheckpointMismatchError, CollectiveError

if TYPE_CHECKING:
    from accelerate.data.adapter import DataLoaderAdapter

__all__ = ["encode", "gather", "restore", "rewind"]

VERSION = 1


def rewind(loader: DataLoaderAdapter) -> Resumption:
    """Puts what has a state of its own where the position says, for the iteration that has just begun."""
    position = loader._accelerate.position
    resumed = position.progress is not None and position.progress.resumed
    owner = _stateful_sampler(loader)
    restored = resumed and owner is not None and position.sampler_state is not None
    if restored:
        owner.load_state_dict(position.sampler_state)
    take, give = _stateful_source(loader)
    placed, stream = (
        resumed and loader._accelerate_inherited.state(loader) is not None and position.data_state is not None,
        None,
    )
    if is_stream(loader) and not loader.num_workers and not placed and not position.start.at_beginning:
        stream, placed = _at(loader, position.start.samples or 0, position.data_state), True
    if resumed and give is not None and position.data_state is not None:
        give(position.data_state)
    return Resumption(sampler=restored, placed=placed, stream=stream, keep_sampler=owner is not None, snapshot=take)


def _at(loader: DataLoaderAdapter, samples: int, state: Any) -> Any:
    """The stream from ``samples`` items on; it counts from where its own state will have been put."""
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDatasetShard):
        dataset.start = samples
        return dataset
    known = samples if state is not None else 0
    return LaterStream(dataset, samples - (known if state is None else state.get("at", known)))


def _stateful_sampler(loader: DataLoaderAdapter) -> Any:
    """The batch sampler or sampler of a user's that keeps a state, or None."""
    shard = shard_of(loader)
    if shard is None:
        return None
    found = (part for part in samplers(shard.batch_sampler) if is_stateful(part))
    return next(found, None)


def _stateful_source(loader: DataLoaderAdapter) -> tuple[Callable[[], Any] | None, Callable[[Any], None] | None]:
    """How the state of the data itself is taken and given back; None where it has none that can be reached."""
    inherited = loader._accelerate_inherited.state(loader)
    if inherited is not None:
        return inherited
    dataset: Any = loader.dataset
    if loader.num_workers or not is_stateful(dataset):
        return None, None
    if isinstance(dataset, IterableDatasetShard):
        return dataset.state_dict, dataset.load_state_dict
    return lambda: {"dataset": dataset.state_dict()}, lambda state: dataset.load_state_dict(state["dataset"])


def encode(loader: DataLoaderAdapter) -> dict[str, Any]:
    """The state of ``loader`` now, in plain values."""
    plan, geometry = loader._accelerate, loader._accelerate_sharing.geometry(loader)
    position, order = plan.position, plan.order
    now = position.now(geometry)
    state: dict[str, Any] = {
        "version": VERSION,
        "epoch": position.epoch,
        "batches": now.batches,
        "samples": now.samples,
        "length": _length(loader),
    }
    if order is not None and order.is_random:
        if order.seed is not None:
            state["seed"] = order.seed
        key = position.key
        if key is None and position.progress is not None:
            key = order.drawn_key
        if key is not None:
            state["key"] = key
    generators = _generators(loader)
    if generators:
        state["generators"] = [encoded(generator.get_state()) for generator in generators]
    for name, value in (
        ("workers", position.workers),
        ("sampler", position.sampler_state),
        ("data", position.data_state),
    ):
        if value is not None:
            state[name] = value
    if loader._accelerate_sharing.ranks_matter(loader):
        state["ranks"] = plan.count
        state["per_rank"] = position.data_state is not None
    if plan.presharded and position.sampler_state is not None:
        state["per_rank"] = True
    return state


def restore(loader: DataLoaderAdapter, state: dict[str, Any]) -> None:
    """The reverse of :func:`encode`, on any rank."""
    plan, geometry = loader._accelerate, loader._accelerate_sharing.geometry(loader)
    state = _of_this_rank(state, plan.count, plan.index)
    length = _length(loader)
    if state.get("length") is not None and length is not None and state["length"] != length:
        raise CheckpointMismatchError(
            f"The state was taken of a loader over {state['length']} samples, and this one has {length}. What is left "
            "of the epoch cannot be known. Prepare the loader over the same data, or start a new epoch."
        )
    start = _start(loader, state, geometry)
    order, position = plan.order, plan.position
    if order is not None and state.get("seed") is not None:
        order.seed = int(state["seed"])
    position.restore(int(state["epoch"]), start)
    position.key, position.workers = state.get("key"), state.get("workers")
    position.sampler_state, position.data_state = state.get("sampler"), state.get("data")
    for generator, held in zip(_generators(loader), state.get("generators", ()), strict=False):
        generator.set_state(decoded(held))
    tell_epoch(loader, position.epoch)


def gather(loader: DataLoaderAdapter, collectives: Any = None) -> dict[str, Any]:
    """Collective. One record of every rank's state."""
    group = collectives if collectives is not None else here.collectives()
    states = group.all_gather_object(encode(loader))
    places = [(state["epoch"], state["batches"]) for state in states]
    if len(set(places)) > 1:
        told = ", ".join(f"rank {rank} at batch {at} of epoch {epoch}" for rank, (epoch, at) in enumerate(places))
        raise CollectiveError(
            f"The state of a loader was asked for while the ranks are at different places: {told}. Ask for it on every "
            "rank after the same step."
        )
    if any(state.get("per_rank") for state in states):
        return {**_rank_free(states[0]), "by_rank": states}
    return dict(states[0])


def _rank_free(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key not in ("data", "sampler")}


def _of_this_rank(state: dict[str, Any], count: int, index: int) -> dict[str, Any]:
    if state.get("version") != VERSION:
        raise CheckpointMismatchError(
            f"The state of a loader has version {state.get('version')!r}, and this release reads version {VERSION}. "
            f"It holds: {', '.join(sorted(map(str, state)))}."
        )
    ranks = state.get("ranks")
    if ranks is not None and ranks != count:
        raise CheckpointMismatchError(
            f"The state was taken on {ranks} ranks from a dataset that divides itself among them, and there are "
            f"{count} now: no rank's place means anything to another number. Go on with the same number of ranks, or "
            "use dispatch_batches=True from the beginning, whose place does not depend on it."
        )
    by_rank = state.get("by_rank")
    if by_rank is None:
        return state
    if len(by_rank) != count:
        raise CheckpointMismatchError(
            f"The state holds the places of {len(by_rank)} ranks, each with a state of its own, and there are {count} "
            "now. Go on with the same number of ranks."
        )
    return dict(by_rank[index])


def _start(loader: DataLoaderAdapter, state: dict[str, Any], geometry: Geometry) -> Start:
    """Where ``state`` is, in batches of this loader, whose size may be another."""
    batches, samples, size = int(state["batches"]), state.get("samples"), geometry.batch_size
    parts = geometry.per_step if loader._accelerate.presharded else 1
    if size is None:
        whole, unit = batches, parts
        start = Start(batches=batches, samples=None)
    else:
        samples = batches * size if samples is None else int(samples)
        whole, unit = samples, parts
        start = Start(batches=-(-samples // size), samples=samples)
        by_index = shard_of(loader) is not None or isinstance(loader.dataset, IterableDatasetShard)
        at_end = state.get("length") is not None and samples >= int(state["length"])
        if not by_index and samples % size and not at_end and state.get("data") is None:
            whole, unit = samples, size
    if whole % unit and not (state.get("length") is not None and whole >= int(state["length"])):
        raise CheckpointMismatchError(
            f"The state is at {whole} of the epoch, which batches of this loader (in units of {unit}) cannot begin at. "
            "Use the batch size and the number of ranks it was taken with."
        )
    return start


def _generators(loader: DataLoaderAdapter) -> list[torch.Generator]:
    """The generators of the user's that later epochs draw from: the workers' seeds, and the keys of the order."""
    order = loader._accelerate.order
    own = [] if loader.generator is None else [loader.generator]
    return own + [found for found in ([] if order is None else order.generators) if found not in own]


def _length(loader: DataLoaderAdapter) -> int | None:
    """Samples in an epoch, of all ranks together; None for a stream or an endless sampler."""
    shard = shard_of(loader)
    if shard is None or loader._accelerate.presharded:
        return None
    sampler = getattr(shard.batch_sampler, "sampler", None)
    try:
        return len(shard.batch_sampler) if sampler is None else len(sampler)
    except (TypeError, NotImplementedError):
        return None
