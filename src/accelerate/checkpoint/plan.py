"""What a load will do, worked out before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from accelerate import runtime
from accelerate.checkpoint.adapter import LoadReport, ModelState
from accelerate.checkpoint.legacy import pair_legacy_optimizers
from accelerate.checkpoint.matching import Candidate, match
from accelerate.checkpoint.naming import describe_class
from accelerate.checkpoint.objects import refuse_code
from accelerate.checkpoint.parts import (
    Record,
    Subject,
    bare_optimizer,
    bare_scheduler,
    label,
    loader_shape,
    model_signature,
    optimizer_groups,
    scheduler_owner,
)
from accelerate.checkpoint.plain import check_tensors
from accelerate.checkpoint.reader import OpenCheckpoint
from accelerate.checkpoint.request import LoadRequest
from accelerate.errors import CheckpointMismatchError

__all__ = ["Plan", "make_plan"]


@dataclass(slots=True)
class Plan:
    """Steps that restore, in order, and what they will have restored.

    loaders: steps that come before all others, since a loader may still refuse; with what undoes each.
    lacking: objects that stay as they are because the checkpoint has nothing for them, which is no error.
    """

    loaders: list[tuple[Callable[[], None], Callable[[], Any]]] = field(default_factory=list)
    steps: list[Callable[[], None]] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    unclaimed: list[str] = field(default_factory=list)

    def note(self, what: str, report: LoadReport) -> None:
        """Takes in what one object's restoring will do."""
        self.restored.append(what)
        self.missing.extend(report.missing)
        self.unexpected.extend(report.unexpected)

    def report(self) -> LoadReport:
        """The whole, for the caller."""
        return LoadReport(
            restored=tuple(self.restored),
            missing=(*self.missing, *self.lacking),
            unexpected=(*self.unexpected, *self.unclaimed),
        )

    def refuse(self, path: Any) -> None:
        """Raises CheckpointMismatchError where something does not fit."""
        if self.missing or self.unexpected:
            raise CheckpointMismatchError(
                f"The checkpoint {path} does not fit what is prepared; nothing was changed.\n"
                f"  expected and not found: {_listed(self.missing)}\n"
                f"  found and not expected: {_listed([*self.unexpected, *self.unclaimed])}\n"
                "Prepare what it was saved from, or pass strict=False to restore what fits."
            )


def _listed(names: Sequence[str], most: int = 30) -> str:
    shown = "; ".join(names[:most]) or "nothing"
    return f"{shown}; and {len(names) - most} more" if len(names) > most else shown


def make_plan(subject: Subject, request: LoadRequest, source: OpenCheckpoint, models: Sequence[Any]) -> Plan:
    """The plan to load ``source``; ``models`` are those that hooks have left to load. Collective where sharded."""
    plan = Plan()
    if subject.adapter.engine:
        _plan_engines(plan, subject, request, source)
    places = _plan_models(plan, subject, request, source, models)
    order = _in_saved_order(subject, source, places)
    optimizers = _plan_optimizers(plan, subject, request, source, order)
    _plan_schedulers(plan, subject, request, source, optimizers)
    _plan_loaders(plan, subject, request, source)
    _plan_objects(plan, subject, request, source)
    return plan


def _candidate(
    subject: Subject, kind: str, index: int, obj: Any, bare: Any, *keys: Any, content: Any = None
) -> Candidate:
    record = subject.record(kind, index, obj, bare)
    return Candidate(
        index=index,
        keys=keys,
        names=tuple(record["names"]),
        token=record["token"],
        label=label(record),
        content=content,
    )


def _saved(record: Record, *keys: Any, content: Any = None) -> Candidate:
    return Candidate(
        index=record["index"], keys=keys, names=tuple(record["names"]), token=record["token"], label=label(record),
        content=content,
    )  # fmt: skip


# Models


def _plan_models(
    plan: Plan, subject: Subject, request: LoadRequest, source: OpenCheckpoint, models: Sequence[Any]
) -> dict[int, int]:
    """Plans the models; index now → index saved."""
    records = {record["index"]: record for record in source.of("model")}
    left = [] if subject.adapter.engine else models
    wanted = {i: model for i, model in enumerate(subject.models) if any(model is one for one in left)}
    states = {i: subject.adapter.model_state(model) for i, model in wanted.items()}
    bare = {i: getattr(subject.adapter, "bare", lambda m: m)(model) for i, model in wanted.items()}
    saved, now = [], []
    for record in records.values():
        signature = record.get("signature") or model_signature(source.shapes(record))  # older layouts have none
        kind = record["class"] if not source.legacy else "?"
        saved.append(_saved(record, (kind, signature), signature, kind, "any"))
    for i, state in states.items():
        shapes = {n: tuple(t.shape) for n, t in state.tensors.items()}
        shapes.update((n, shapes[kept]) for n, kept in state.aliases.items())
        signature = model_signature(shapes)
        kind = describe_class(bare[i]) if not source.legacy else "?"
        now.append(_candidate(subject, "model", i, wanted[i], bare[i], (kind, signature), signature, kind, "any"))
    found = match("model", saved, now, by_order=request.by_order)
    for candidate in now:
        if candidate.index in found:
            i = candidate.index
            _plan_model(plan, subject, source, records[found[i]], wanted[i], states[i], candidate.label)
        else:
            plan.missing.append(candidate.label)
    plan.unclaimed.extend(label(r) for index, r in records.items() if index not in found.values())
    return found


def _plan_engines(plan: Plan, subject: Subject, request: LoadRequest, source: OpenCheckpoint) -> None:
    """Plans models whose engines read their own files."""
    records = {record["index"]: record for record in source.of("engine")}
    now = [_candidate(subject, "engine", i, m, m, describe_class(m), "any") for i, m in enumerate(subject.models)]
    saved = [_saved(record, record["class"], "any") for record in records.values()]
    found = match("engine", saved, now, by_order=request.by_order)
    for candidate in now:
        if candidate.index not in found:
            plan.missing.append(candidate.label)
            continue
        name, model = records[found[candidate.index]]["files"][0], subject.models[candidate.index]
        if not request.allow_pickle:
            _refuse_code(source.path / name, subject.adapter.engine_classes)
        plan.restored.append(candidate.label)
        plan.steps.append(
            lambda name=name, model=model: subject.adapter.load_engine(  # type: ignore[misc]
                model, source.path, name, **request.engine_options
            )
        )


def _refuse_code(folder: Path, known: Collection[str]) -> None:
    """Looks at this rank's share of an engine's files; what one rank refuses, all do."""
    topology = runtime.current().topology
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files[topology.rank :: topology.world_size]:
        refuse_code(path, known)


def _plan_model(
    plan: Plan, subject: Subject, source: OpenCheckpoint, record: Record, model: Any, state: ModelState, what: str
) -> None:
    expected = {**state.tensors, **{n: state.tensors[kept] for n, kept in state.aliases.items()}}
    offered = {n: torch.empty(shape, device="meta") for n, shape in source.shapes(record).items()}
    plan.note(what, check_tensors(expected, offered, state.aliases, what))

    def step() -> None:
        tensors = source.tensors(record, expected)
        if "extra" in record:
            tensors.update(source.object({"files": [record["extra"]]}))
        subject.adapter.load_model_state(model, tensors, strict=False)

    plan.steps.append(step)


def _in_saved_order(subject: Subject, source: OpenCheckpoint, places: dict[int, int]) -> list[Any]:
    """The models now, each at the index it was saved under; None where there is none now.

    A model that a hook saved has no record: it is taken to have kept its place.
    """
    recorded = {record["index"] for record in source.of("model")}
    size = max([len(subject.models), *(index + 1 for index in recorded)])
    order: list[Any] = [None] * size
    for now, saved in places.items():
        order[saved] = subject.models[now]
    for index, model in enumerate(subject.models):
        if index not in places and index not in recorded and order[index] is None:
            order[index] = model
    return order


# Optimizers


def _plan_optimizers(
    plan: Plan, subject: Subject, request: LoadRequest, source: OpenCheckpoint, order: list[Any]
) -> dict[int, int]:
    records = {record["index"]: record for record in source.of("optimizer")}
    wanted = {i: bare_optimizer(o) for i, o in enumerate(subject.optimizers) if not subject.adapter.owns(o)}
    if source.legacy:
        found, states = pair_legacy_optimizers(subject.adapter, source, records, wanted, order)
    else:
        saved = [_saved(r, *_optimizer_keys(r["class"], r["groups"])) for r in records.values()]
        now = [
            _candidate(
                subject, "optimizer", i, subject.optimizers[i], bare,
                *_optimizer_keys(
                    describe_class(bare), optimizer_groups(subject.adapter.optimizer_names(bare, order), bare, order)
                ),
            )
            for i, bare in wanted.items()
        ]  # fmt: skip
        found = match("optimizer", saved, now, by_order=request.by_order)
        layouts = {index: subject.adapter.layout(wanted[i], order) for i, index in found.items()}
        states = {index: source.optimizer(records[index], layouts[index]) for index in found.values()}
    for i, bare in wanted.items():
        what = label(subject.record("optimizer", i, subject.optimizers[i], bare))
        if i not in found:
            plan.missing.append(what)
            continue
        state = states[found[i]]
        plan.note(what, subject.adapter.check_optimizer_state(bare, order, state))

        def step(bare: Any = bare, state: Any = state) -> None:
            subject.adapter.load_optimizer_state(bare, order, state, strict=False)

        plan.steps.append(step)
    plan.unclaimed.extend(label(r) for index, r in records.items() if index not in found.values())
    return found


def _optimizer_keys(kind: str, groups: Sequence[Sequence[str]]) -> tuple[Any, ...]:
    parted = tuple(sorted(tuple(sorted(group)) for group in groups))
    names = tuple(sorted(name for group in groups for name in group))
    return (kind, parted), (kind, names), names, kind, "any"


# The rest


def _plan_schedulers(
    plan: Plan, subject: Subject, request: LoadRequest, source: OpenCheckpoint, optimizers: dict[int, int]
) -> None:
    wanted = {i: s for i, s in enumerate(subject.schedulers) if not subject.adapter.owns(s)}
    now = []
    for i, scheduler in wanted.items():
        bare = bare_scheduler(scheduler)
        owner = scheduler_owner(subject, scheduler)
        kind = "?" if source.legacy else describe_class(bare)
        place = None if owner is None else optimizers.get(owner)
        now.append(_candidate(subject, "scheduler", i, scheduler, bare, (kind, place), kind, "any"))
    steps = _plan_simple(
        plan, request, source, "scheduler", now, lambda i, state: wanted[i].load_state_dict(state), _kind_and_owner
    )
    plan.steps.extend(steps.values())


def _kind_and_owner(record: Record, legacy: bool) -> tuple[Any, ...]:
    kind = "?" if legacy else record["class"]
    return (kind, record.get("optimizer")), kind, "any"


def _plan_loaders(plan: Plan, subject: Subject, request: LoadRequest, source: OpenCheckpoint) -> None:
    now = [
        _candidate(subject, "loader", i, loader, loader, (describe_class(loader), *loader_shape(loader)),
                   tuple(loader_shape(loader)), "any")
        for i, loader in enumerate(subject.loaders)
        if not subject.adapter.owns(loader) and hasattr(loader, "load_state_dict")
    ]  # fmt: skip

    def keys(record: Record, legacy: bool) -> tuple[Any, ...]:
        shape = tuple(record.get("shape", ()))
        return (record["class"], *shape), shape, "any"

    steps = _plan_simple(
        plan, request, source, "loader", now, lambda i, state: subject.loaders[i].load_state_dict(state), keys,
        optional=True,
    )  # fmt: skip
    labels = {candidate.index: candidate.label for candidate in now}
    tolerant = source.legacy or not request.strict
    for index, step in steps.items():
        taken = _tolerated(plan, labels[index], step) if tolerant else step
        plan.loaders.append((taken, _undo(subject.loaders[index])))


def _undo(loader: Any) -> Callable[[], Any]:
    before = loader.state_dict()
    return lambda: loader.load_state_dict(before)


def _tolerated(plan: Plan, what: str, step: Callable[[], None]) -> Callable[[], None]:
    def tolerated() -> None:
        try:
            step()
        except CheckpointMismatchError as error:
            plan.restored.remove(what)
            plan.lacking.append(f"{what}: {error}")

    return tolerated


def _plan_objects(plan: Plan, subject: Subject, request: LoadRequest, source: OpenCheckpoint) -> None:
    now = [
        _candidate(subject, "object", i, custom, custom, "?" if source.legacy else describe_class(custom), "any")
        for i, custom in enumerate(subject.customs)
    ]
    steps = _plan_simple(
        plan, request, source, "object", now, lambda i, state: subject.customs[i].load_state_dict(state),
        lambda record, legacy: ("?" if legacy else record["class"], "any"),
    )  # fmt: skip
    plan.steps.extend(steps.values())
    scalers = source.of("scaler")
    if subject.scaler is not None and scalers:
        state = source.object(scalers[0])
        if state:
            plan.steps.append(lambda: subject.scaler.load_state_dict(state))  # type: ignore[union-attr]
            plan.restored.append("scaler")
    elif subject.scaler is not None:
        plan.lacking.append("scaler")
    elif scalers:
        plan.unclaimed.append("scaler")


def _plan_simple(
    plan: Plan,
    request: LoadRequest,
    source: OpenCheckpoint,
    kind: str,
    now: list[Candidate],
    restore: Callable[[int, Any], Any],
    keys: Callable[[Record, bool], tuple[Any, ...]],
    *,
    optional: bool = False,
) -> dict[int, Callable[[], None]]:
    """Plans objects whose state is one small file each; the step for each index now."""
    records = {record["index"]: record for record in source.of(kind)}
    states = {index: source.object(record) for index, record in records.items()} if now else {}
    saved = [_saved(r, *keys(r, source.legacy), content=states.get(i)) for i, r in records.items()]
    # Objects of an older layout have neither names nor classes: their number is all there is to go by.
    found = match(kind, saved, now, by_order=request.by_order or source.legacy)
    steps: dict[int, Callable[[], None]] = {}
    for candidate in now:
        index = candidate.index
        if index not in found:
            (plan.lacking if optional else plan.missing).append(candidate.label)
            continue
        plan.restored.append(candidate.label)
        state = states[found[index]]
        steps[index] = lambda index=index, state=state: restore(index, state)  # type: ignore[misc]
    plan.unclaimed.extend(label(r) for index, r in records.items() if index not in found.values())
    return steps
