"""WHAT a checkpoint is made of: files to write, and a record of every object they belong to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import xxhash

from accelerate.checkpoint import layout
from accelerate.checkpoint.adapter import ModelState, OptimizerState, StateAdapter
from accelerate.checkpoint.naming import describe_class
from accelerate.checkpoint.optimizer_state import to_torch_layout
from accelerate.checkpoint.plain import tied_names

__all__ = [
    "Piece",
    "Subject",
    "bare_optimizer",
    "bare_scheduler",
    "common_pieces",
    "label",
    "loader_shape",
    "model_pieces",
    "model_signature",
    "optimizer_groups",
    "optimizer_pieces",
    "optimizer_record",
    "scheduler_owner",
    "shards_of",
]

Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One file to be: a table of tensors, an object, JSON, or bytes as they are."""

    file: str
    form: Literal["tensors", "object", "json", "bytes"]
    value: Any
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Subject:
    """Everything of one accelerator that goes into a checkpoint, and how its objects are called."""

    models: Sequence[torch.nn.Module]
    optimizers: Sequence[Any]
    schedulers: Sequence[Any]
    loaders: Sequence[Any]
    customs: Sequence[Any]
    scaler: Any | None
    step: int
    adapter: StateAdapter
    names: Callable[[Any], tuple[str, ...]] = lambda obj: ()
    token: Callable[[Any], str] = lambda obj: ""

    def record(self, kind: str, index: int, obj: Any, bare: Any) -> Record:
        """The beginning of an object's record: what it is and how it is called."""
        return {
            "kind": kind,
            "index": index,
            "class": describe_class(bare),
            "names": list(self.names(obj)),
            "token": self.token(obj),
        }


def label(record: Mapping[str, Any]) -> str:
    """An object as it is called in messages."""
    if record["kind"] == "rng":
        return f"random states of rank {record['index']}"
    if "class" not in record:
        return str(record["kind"])
    named = f" {record['names'][0]!r}" if record["names"] else f" {record['index']}"
    return f"{record['kind']}{named} ({record['class'].rpartition('.')[2]})"


def bare_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer inside the one that ``prepare`` returned."""
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, torch.optim.Optimizer) else optimizer


def bare_scheduler(scheduler: Any) -> Any:
    """The scheduler inside the one that ``prepare`` returned."""
    return getattr(scheduler, "scheduler", scheduler)


def model_signature(shapes: Mapping[str, Sequence[int]]) -> str:
    """A short text that is equal for models whose tensors have the same names and shapes."""
    text = json.dumps(sorted((name, list(shape)) for name, shape in shapes.items()))
    return xxhash.xxh3_64_hexdigest(text.encode())


def model_pieces(
    index: int,
    state: ModelState,
    tensors: Mapping[str, Any],
    *,
    safe: bool,
    max_shard_size: int | str | None,
    mark: str,
) -> tuple[list[Piece], Record]:
    """The files of one model and what its record says of them.

    ``tensors`` are those of ``state`` with its aliases, as a hook may have left them. ``mark`` goes into the metadata.
    """
    plain = {name: value for name, value in tensors.items() if isinstance(value, torch.Tensor)}
    unchanged = plain.keys() == state.tensors.keys() | state.aliases.keys()
    aliases = state.aliases if unchanged else tied_names(plain)
    name = layout.model_name(index, safe=safe)
    record: Record = {
        "signature": model_signature({key: tuple(value.shape) for key, value in plain.items()}),
        "aliases": dict(aliases),
    }
    if safe:
        plain = {key: value for key, value in plain.items() if key not in aliases}
    metadata = {**aliases, "accelerate_checkpoint": mark} if safe else {}
    form: Literal["tensors", "object"] = "tensors" if safe else "object"
    pieces = [
        Piece(file=file, form=form, value=table, metadata=metadata)
        for file, table in shards_of(plain, name, max_shard_size)
    ]
    if len(pieces) > 1 or (pieces and pieces[0].file != name):
        pieces.append(_index(name, pieces))
    extra = {key: value for key, value in tensors.items() if not isinstance(value, torch.Tensor)}
    extra.update(state.metadata.get("extra_state", {}))
    if extra:
        record["extra"] = layout.numbered("model_extra_state.bin", index)
        pieces.append(Piece(file=record["extra"], form="object", value=extra))
    record["files"] = [piece.file for piece in pieces]
    return pieces, record


def shards_of(
    tensors: Mapping[str, torch.Tensor], name: str, max_shard_size: int | str | None
) -> list[tuple[str, dict[str, torch.Tensor]]]:
    """(file, tensors) for every shard of at most ``max_shard_size``; the one file ``name`` where all fits, or None."""
    if max_shard_size is None:
        return [(name, dict(tensors))]
    from huggingface_hub import split_torch_state_dict_into_shards

    split = split_torch_state_dict_into_shards(
        dict(tensors), filename_pattern=layout.shard_pattern(name), max_shard_size=max_shard_size
    )
    return [(file, {key: tensors[key] for key in keys}) for file, keys in split.filename_to_tensors.items()]


def _index(name: str, shards: Sequence[Piece]) -> Piece:
    size = sum(tensor.numel() * tensor.element_size() for shard in shards for tensor in shard.value.values())
    places = {key: shard.file for shard in shards for key in shard.value}
    return Piece(
        file=layout.index_name(name), form="json", value={"metadata": {"total_size": size}, "weight_map": places}
    )


def optimizer_groups(
    names: Sequence[Sequence[str]], optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module | None]
) -> list[list[str]]:
    """``"<model>/<name>"`` for every parameter, by group; ``names`` are those of ``naming.parameter_names``."""
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    owners = [
        index
        for index, model in enumerate(models)
        if model is not None and any(id(p) in stepped for p in model.parameters())
    ]
    if len(owners) == 1:
        return [[f"{owners[0]}/{name}" for name in group] for group in names]
    return [list(group) for group in names]


def optimizer_record(
    subject: Subject, index: int, optimizer: torch.optim.Optimizer, state: OptimizerState, files: list[str]
) -> Record:
    """The record of an optimizer: which parameters of which models it steps."""
    record = subject.record("optimizer", index, subject.optimizers[index], optimizer)
    names = [list(group["params"]) for group in state.param_groups]
    if "raw" in state.extra:
        names = subject.adapter.optimizer_names(optimizer, subject.models)
    groups = optimizer_groups(names, optimizer, subject.models)
    return {**record, "groups": groups, "parameters": names, "named": state.named, "files": files}


def optimizer_pieces(
    subject: Subject, index: int, gather: Callable[[OptimizerState], OptimizerState] = lambda state: state
) -> tuple[list[Piece], Record]:
    """The file of one optimizer, in torch's own layout, and its record, which has the names. ``gather`` brings a
    divided state together."""
    optimizer = bare_optimizer(subject.optimizers[index])
    state = gather(subject.adapter.optimizer_state(optimizer, subject.models))
    file = layout.numbered("optimizer.bin", index)
    record = optimizer_record(subject, index, optimizer, state, [file])
    return [Piece(file=file, form="object", value=to_torch_layout(state))], record


def loader_shape(loader: Any) -> list[int | None]:
    """[items in the dataset, items in a batch] of a loader, None for what it does not say."""
    found: list[int | None] = []
    for get in (lambda: len(loader.dataset), lambda: loader.batch_size):
        try:
            value = get()
            found.append(value if isinstance(value, int) else None)
        except (TypeError, AttributeError, NotImplementedError):
            found.append(None)
    return found


def scheduler_owner(subject: Subject, scheduler: Any) -> int | None:
    """Which of the prepared optimizers a scheduler drives."""
    own = getattr(bare_scheduler(scheduler), "optimizer", None)
    for index, optimizer in enumerate(subject.optimizers):
        if own is not None and (own is optimizer or own is bare_optimizer(optimizer)):
            return index
    return None


def common_pieces(subject: Subject, loader_states: Sequence[Any]) -> tuple[list[Piece], list[Record]]:
    """Files and records of what is saved the same way under every strategy: schedulers, loaders, scaler, objects."""
    pieces: list[Piece] = []
    records: list[Record] = []

    def add(record: Record, file: str, state: Any) -> None:
        records.append({**record, "files": [file]})
        pieces.append(Piece(file=file, form="object", value=state))

    for index, scheduler in enumerate(subject.schedulers):
        if subject.adapter.owns(scheduler):
            continue
        record = subject.record("scheduler", index, scheduler, bare_scheduler(scheduler))
        record["optimizer"] = scheduler_owner(subject, scheduler)
        add(record, layout.numbered("scheduler.bin", index), scheduler.state_dict())
    for index, (loader, state) in enumerate(zip(subject.loaders, loader_states, strict=True)):
        record = {**subject.record("loader", index, loader, loader), "shape": loader_shape(loader)}
        add(record, layout.numbered("sampler.bin", index), state)
    for index, custom in enumerate(subject.customs):
        add(subject.record("object", index, custom, custom), layout.custom_name(index), custom.state_dict())
    if subject.scaler is not None:
        add({"kind": "scaler", "index": 0}, "scaler.pt", subject.scaler.state_dict())
    return pieces, records
