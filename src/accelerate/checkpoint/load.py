"""Restores a checkpoint into everything an accelerator holds, or leaves all of it as it was."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from accelerate import errors, runtime
from accelerate.checkpoint import layout, rng_files
from accelerate.checkpoint.adapter import LoadReport
from accelerate.checkpoint.collect import purpose
from accelerate.checkpoint.manifest import Manifest
from accelerate.checkpoint.parts import Subject
from accelerate.checkpoint.plan import Plan, make_plan
from accelerate.checkpoint.reader import OpenCheckpoint
from accelerate.checkpoint.request import LoadRequest
from accelerate.checkpoint.store import CheckpointStore
from accelerate.comm import operations
from accelerate.errors import CheckpointDamagedError, CheckpointError, CheckpointNotFoundError
from accelerate.logging import get_logger

__all__ = ["Loaded", "find", "load", "newest"]

log = get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What was loaded: from where, its number under automatic naming, the step count, and the report."""

    path: Path
    number: int | None
    step: int | None
    report: LoadReport


def agreed(work: Callable[[], T]) -> T:
    """Collective. What ``work`` returned, once it has succeeded on every rank.

    Raises:
        Exception: this rank's error; where only others failed, the first one's, in its class and with its rank.
    """
    error: Exception | None = None
    result: Any = None
    try:
        result = work()
    except Exception as raised:
        error = raised
    told = operations.gather_object([None if error is None else (type(error).__name__, str(error))])
    if error is not None:
        raise error
    for rank, message in enumerate(told):
        if message is not None:
            kind = getattr(errors, message[0], CheckpointError)
            raise kind(f"Rank {rank}: {message[1]}")
    return result  # type: ignore[no-any-return]


def from_main(work: Callable[[], T]) -> T:
    """Collective. What ``work`` returned on the main process. Raises its error on every rank."""
    result: Any = agreed(work if runtime.current().topology.rank == 0 else lambda: None)
    return operations.broadcast_object_list([result])[0]  # type: ignore[no-any-return]


def newest(store: CheckpointStore, root: Path) -> Path | None:
    """The newest numbered checkpoint below ``root``, or None."""
    entries = store.entries(root)
    return entries[-1].path if entries else None


def find(store: CheckpointStore, request: LoadRequest) -> Path:
    """The folder to load from.

    Raises:
        CheckpointNotFoundError: there is none.
    """
    if request.source is None:
        if request.root is None:
            raise CheckpointNotFoundError(
                "load_state() got no folder, and automatic naming is off. Pass the folder, or construct "
                "Accelerator(project_config=ProjectConfiguration(project_dir=…, automatic_checkpoint_naming=True))."
            )
        path = newest(store, request.root)
        if path is None:
            raise CheckpointNotFoundError(
                f"There is no checkpoint in {request.root} yet. Save one first, or pass the folder to load_state."
            )
        return path
    store.settle(request.source)
    if not request.source.is_dir():
        raise CheckpointNotFoundError(f"There is no checkpoint {request.source}: the folder does not exist.")
    if store.manifest(request.source) is None and not layout.looks_like_checkpoint(request.source):
        inside = newest(store, request.source)
        hint = f" It holds numbered checkpoints, of which the newest is {inside}." if inside else ""
        raise CheckpointNotFoundError(f"{request.source} is not a checkpoint: nothing in it has a known name.{hint}")
    return request.source


def load(subject: Subject, store: CheckpointStore, request: LoadRequest) -> Loaded:
    """Collective. Loads a checkpoint.

    Raises:
        CheckpointNotFoundError: there is none.
        CheckpointDamagedError: a file is missing or differs; the file, its object and the checkpoint before are named.
        CheckpointMismatchError: ``strict``, and it does not fit; or several objects fit one another.
        PickleRefusedError: a file would have to be unpickled.
        Nothing has been changed where one of these is raised.
    """
    found = from_main(lambda: _located(store, request))
    # Machines that share no files keep copies of one name at places of their own.
    own = request.source if request.source is not None else request.root and request.root / found.name
    path = Path(os.path.abspath(own or found))
    source = agreed(lambda: _open(store, path, request))
    models = list(subject.models)
    for hook in request.hooks:
        hook(models, str(path))
    plan = agreed(lambda: _planned(subject, request, source, models))
    _restore_loaders(plan)
    for step in plan.steps:
        step()
    _restore_rng(plan, source)
    _say(plan, source)
    number = source.content.get("number", layout.checkpoint_number(path.name))
    return Loaded(path=path, number=number, step=source.step(), report=plan.report())


def _located(store: CheckpointStore, request: LoadRequest) -> Path:
    try:
        return Path(os.path.abspath(find(store, request)))
    except CheckpointDamagedError as error:
        raise _with_offer(error, store, request.source or Path()) from error


def _open(store: CheckpointStore, path: Path, request: LoadRequest) -> OpenCheckpoint:
    topology = runtime.current().topology
    try:
        if topology.is_local_main and topology.node_rank:
            store.settle(path)
        if not path.is_dir():
            raise CheckpointNotFoundError(
                f"There is no checkpoint {path} on the machine of rank {topology.rank}. Load from files that all "
                "machines share, or save with ProjectConfiguration(save_on_each_node=True)."
            )
        manifest = store.manifest(path)
        if manifest is not None and request.verify and topology.is_local_main:
            _verify(store, path, manifest)
        return OpenCheckpoint(path, manifest, allow_pickle=request.allow_pickle)
    except CheckpointDamagedError as error:
        raise _with_offer(error, store, path) from error


def _verify(store: CheckpointStore, path: Path, manifest: Manifest) -> None:
    store.verify(path, manifest, describe=lambda file: purpose(manifest.content, file))


def _with_offer(error: CheckpointDamagedError, store: CheckpointStore, path: Path) -> CheckpointDamagedError:
    """The error with the newest checkpoint before ``path`` that is whole, if there is one."""
    number = layout.checkpoint_number(path.name)
    earlier = [e for e in store.entries(path.parent) if number is not None and e.number < number]
    for entry in reversed(earlier):
        try:
            manifest = store.manifest(entry.path)
            if manifest is not None:
                _verify(store, entry.path, manifest)
                return CheckpointDamagedError(
                    f"{error}\n  The one before it is whole: load_state({str(entry.path)!r})."
                )
        except CheckpointDamagedError:
            continue
    return CheckpointDamagedError(f"{error}\n  There is no whole one before it." if number is not None else str(error))


def _planned(subject: Subject, request: LoadRequest, source: OpenCheckpoint, models: list[Any]) -> Plan:
    plan = make_plan(subject, request, source, models)
    if request.strict:
        plan.refuse(source.path)
    return plan


def _restore_loaders(plan: Plan) -> None:
    """Loaders come first, and together: one may find that its place means nothing to it."""
    done: list[Callable[[], Any]] = []

    def restore() -> None:
        for step, undo in plan.loaders:
            done.append(undo)
            step()

    try:
        agreed(restore)
    except Exception:
        for undo in done:
            undo()
        raise


def _restore_rng(plan: Plan, source: OpenCheckpoint) -> None:
    """Restores this rank's random generators, last, so that nothing that restoring draws counts."""
    topology = runtime.current().topology
    records = {record["index"]: record for record in source.of("rng")}
    own = f"random states of rank {topology.rank}"
    if topology.rank in records:
        unmatched = rng_files.restore(source.object(records[topology.rank]))
        plan.restored.append(own)
        plan.lacking.extend(f"{own}: {name}" for name in unmatched)
    else:
        plan.lacking.append(own)
    plan.unclaimed.extend(f"random states of rank {rank}" for rank in records if rank >= topology.world_size)


def _say(plan: Plan, source: OpenCheckpoint) -> None:
    """Says what stays as it was, and what the checkpoint has that nobody asked for."""
    missing = [*plan.missing, *plan.lacking]
    if missing:
        log.warning(
            f"Loaded {source.path}. Not in it, and so left as it was: {'; '.join(missing)}.", main_process_only=False
        )
    unexpected = [*plan.unexpected, *plan.unclaimed]
    if unexpected:
        log.warning(f"Loaded {source.path}. In it, and not restored into anything: {'; '.join(unexpected)}.")
