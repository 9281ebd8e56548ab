"""Brings together what one save writes: what every rank contributes, then the files and the content of the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accelerate import runtime
from accelerate._version import __version__
from accelerate.checkpoint import layout
from accelerate.checkpoint.adapter import ModelState
from accelerate.checkpoint.divided import Parts, whole_optimizer, whole_pieces
from accelerate.checkpoint.parts import Piece, Record, Subject, common_pieces, label, model_pieces, optimizer_pieces
from accelerate.checkpoint.request import SaveRequest

__all__ = ["Contribution", "contribute", "describe", "everything_else", "plain_pieces", "purpose"]


@dataclass(slots=True, kw_only=True)
class Contribution:
    """What one rank brings to a save.

    models: the index of each model that hooks left to us → its state and its tensors by name, aliases included.
    hooked: the other models. parts: this rank's parts of divided state. pieces, records: files of the main process
    that needed every rank to make.
    """

    models: dict[int, tuple[ModelState, Mapping[str, Any]]] = field(default_factory=dict)
    hooked: tuple[int, ...] = ()
    loaders: list[Any] = field(default_factory=list)
    parts: Parts | None = None
    pieces: list[Piece] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)


def contribute(
    subject: Subject, request: SaveRequest, folder: Path, *, complete: bool, durable: bool = True
) -> Contribution:
    """What this rank contributes. Collective where ``complete`` (every rank takes part), which divided state needs.

    Runs the user's hooks as ``hook(models, weights, folder)``; a hook saves a model itself by taking its weights out
    of the list.
    """
    contribution = Contribution()
    adapter = subject.adapter
    if adapter.engine:
        _run_hooks(subject, request, [], folder)
        _save_engines(subject, request, folder, contribution)
    else:
        states = [adapter.model_state(model) for model in subject.models]
        weights = [_with_aliases(state) for state in states]
        given = {id(table): index for index, table in enumerate(weights)}
        _run_hooks(subject, request, weights, folder)
        contribution.models = {given[id(table)]: (states[given[id(table)]], table) for table in weights}
        contribution.hooked = tuple(i for i in range(len(states)) if i not in contribution.models)
        if adapter.sharded:
            _divide(subject, request, folder, contribution, durable)
    contribution.loaders = [_loader_state(loader, complete) for loader in subject.loaders]
    return contribution


def _run_hooks(subject: Subject, request: SaveRequest, weights: list[dict[str, Any]], folder: Path) -> None:
    for hook in request.hooks:
        hook(list(subject.models), weights, str(folder))


def _save_engines(subject: Subject, request: SaveRequest, folder: Path, contribution: Contribution) -> None:
    """Collective. Lets engines write their own files."""
    for index, model in enumerate(subject.models):
        name = layout.engine_folder(index)
        subject.adapter.save_engine(model, folder, name, **request.engine_options)
        record = subject.record("engine", index, model, bare_model(subject, model))
        contribution.records.append({**record, "files": [name]})
    runtime.current().collectives.barrier()


def _divide(subject: Subject, request: SaveRequest, folder: Path, contribution: Contribution, durable: bool) -> None:
    """Collective. Plans what this rank writes of divided state, or brings it together on the main process."""
    keep = runtime.current().topology.rank == 0
    if not subject.adapter.whole:
        parts = contribution.parts = Parts(folder, durable=durable, asynchronous=request.asynchronous)
    for index, (state, _) in sorted(contribution.models.items()):
        bare = bare_model(subject, subject.models[index])
        if contribution.parts is not None:
            parts.add_model(subject, index, bare, state)
        else:
            pieces, record = whole_pieces(subject, index, bare, state, keep=keep)
            contribution.pieces += pieces
            contribution.records.append(record)
    for index, optimizer in enumerate(subject.optimizers):
        if subject.adapter.owns(optimizer):
            continue
        if contribution.parts is not None:
            parts.add_optimizer(subject, index)
        else:
            pieces, record = optimizer_pieces(subject, index, lambda state: whole_optimizer(state, keep=keep))
            contribution.pieces += pieces if keep else []
            contribution.records.append(record)
    if contribution.parts is not None:
        contribution.records += parts.records


def _with_aliases(state: ModelState) -> dict[str, Any]:
    return {**state.tensors, **{name: state.tensors[kept] for name, kept in state.aliases.items()}}


def _loader_state(loader: Any, complete: bool) -> Any:
    gather = getattr(loader, "gather_state", None)
    if complete and gather is not None:
        return gather(runtime.current().collectives)
    own = getattr(loader, "state_dict", None)
    return own() if own is not None else None


def plain_pieces(
    subject: Subject, request: SaveRequest, contribution: Contribution, mark: str
) -> tuple[list[Piece], list[Record]]:
    """Files and records of models and optimizers, as far as the main process writes them."""
    pieces, records = list(contribution.pieces), list(contribution.records)
    if subject.adapter.sharded or subject.adapter.engine:
        return pieces, records
    for index, (state, tensors) in sorted(contribution.models.items()):
        made, record = model_pieces(
            index, state, tensors, safe=request.safe, max_shard_size=request.max_shard_size, mark=mark
        )
        model = subject.models[index]
        records.append({**subject.record("model", index, model, bare_model(subject, model)), **record})
        pieces += made
    for index, optimizer in enumerate(subject.optimizers):
        if not subject.adapter.owns(optimizer):
            made, record = optimizer_pieces(subject, index)
            records.append(record)
            pieces += made
    return pieces, records


def bare_model(subject: Subject, model: Any) -> Any:
    """The user's own module inside a prepared one."""
    bare = getattr(subject.adapter, "bare", None)
    return model if bare is None else bare(model)


def rank_pieces(parts: Mapping[int, bytes]) -> tuple[list[Piece], list[Record]]:
    """Files and records of the ranks' random generators."""
    pieces = [Piece(file=layout.rng_name(rank), form="bytes", value=parts[rank]) for rank in sorted(parts)]
    records: list[Record] = [{"kind": "rng", "index": rank, "files": [layout.rng_name(rank)]} for rank in sorted(parts)]
    return pieces, records


def everything_else(
    subject: Subject, contribution: Contribution, parts: Mapping[int, bytes]
) -> tuple[list[Piece], list[Record]]:
    """Files and records of all but models and optimizers."""
    states = contribution.loaders
    pieces, records = common_pieces(subject, states)
    more_pieces, more_records = rank_pieces(parts)
    return [*pieces, *more_pieces], [*records, *more_records]


def describe(
    subject: Subject,
    records: Sequence[Record],
    *,
    number: int | None,
    missing: Sequence[int],
    hooked: Sequence[int],
) -> dict[str, Any]:
    """The content of the manifest."""
    topology = runtime.current().topology
    notes = []
    if missing:
        notes.append(f"Ranks {', '.join(map(str, missing))} did not call save_state: their random states are not here.")
    if hooked:
        notes.append(f"Models {', '.join(map(str, hooked))} were saved by a hook, not by us.")
    return {
        "writer": f"accelerate {__version__}",
        "world_size": topology.world_size,
        "number": number,
        "step": subject.step,
        "objects": list(records),
        "notes": notes,
    }


def purpose(content: Mapping[str, Any], file: str) -> str:
    """A file as messages name it: with what it is for."""
    for record in content.get("objects", ()):
        if any(file == own or file.startswith(f"{own}/") for own in record.get("files", ())):
            return f"{file} ({label(record)})"
    return file
