"""State that is divided over ranks: each writes its own parts into folders, and reads the parts it needs."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from accelerate import runtime
from accelerate.checkpoint import layout
from accelerate.checkpoint.adapter import ModelState, OptimizerState
from accelerate.checkpoint.manifest import FileRecord
from accelerate.checkpoint.parts import Piece, Record, Subject, bare_optimizer, model_signature, optimizer_record
from accelerate.checkpoint.store import Transaction
from accelerate.errors import CheckpointError

if TYPE_CHECKING:
    from accelerate.checkpoint.dcp import FolderWriter

# torch.distributed.checkpoint takes long to import, and only who divides state needs it.
__all__ = ["Parts", "Receipt", "model_shapes", "read_model", "read_optimizer", "whole_optimizer"]

# As the public functions for one divided model or optimizer lay folders out.
MODEL, OPTIMIZER, ALIASES = "model", "optimizer", "aliases"


class Receipt:
    """What one rank tells when it has written its parts: what each folder's index needs, and records of its files."""

    @staticmethod
    def pack(folders: Sequence[bytes], records: Sequence[FileRecord]) -> bytes:
        return pickle.dumps(("written", list(folders), [asdict(record) for record in records]))

    @staticmethod
    def failure(error: BaseException) -> bytes:
        return pickle.dumps(("failed", f"{type(error).__name__}: {error}", []))

    @staticmethod
    def unpack(rank: int, data: bytes) -> tuple[list[bytes], list[FileRecord]]:
        """Raises CheckpointError where the rank failed."""
        how, folders, records = pickle.loads(data)
        if how != "written":
            raise CheckpointError(f"Rank {rank} could not write its part: {folders}")
        return folders, [FileRecord(**record) for record in records]


class Parts:
    """This rank's parts of one checkpoint. Planned collectively, written alone."""

    def __init__(self, folder: Path, *, durable: bool, asynchronous: bool) -> None:
        self._folder = folder
        self._durable = durable
        self._asynchronous = asynchronous
        self._writers: list[FolderWriter] = []
        self.records: list[Record] = []

    def __bool__(self) -> bool:
        return bool(self._writers)

    def _add(self, name: str, state: dict[str, Any]) -> None:
        from accelerate.checkpoint import dcp

        if self._asynchronous:
            state = dcp.staged(state)
        collectives = runtime.current().collectives
        self._writers.append(dcp.FolderWriter(self._folder / name, state, collectives, durable=self._durable))

    def add_model(self, subject: Subject, index: int, bare: Any, state: ModelState) -> None:
        """Collective. Plans the parts of one model."""
        name = layout.model_folder(index)
        self._add(name, {MODEL: dict(state.tensors), **({ALIASES: dict(state.aliases)} if state.aliases else {})})
        shapes = {key: tuple(value.shape) for key, value in state.tensors.items()}
        shapes.update((alias, shapes[kept]) for alias, kept in state.aliases.items())
        self.records.append(
            {
                **subject.record("model", index, subject.models[index], bare),
                "signature": model_signature(shapes),
                "aliases": dict(state.aliases),
                "files": [name],
            }
        )

    def add_optimizer(self, subject: Subject, index: int) -> None:
        """Collective. Plans the parts of one optimizer."""
        optimizer = bare_optimizer(subject.optimizers[index])
        state = subject.adapter.optimizer_state(optimizer, subject.models)
        if "raw" in state.extra:
            raise CheckpointError(
                f"The state of {type(optimizer).__name__} is not laid out as that of torch's optimizers, so it cannot "
                "be divided. Use state_dict_type='FULL_STATE_DICT'."
            )
        name = layout.optimizer_folder(index)
        self._add(name, {OPTIMIZER: {**state.extra, "state": state.state, "param_groups": state.param_groups}})
        self.records.append(optimizer_record(subject, index, optimizer, state, [name]))

    def write(self, transaction: Transaction, rank: int) -> bytes:
        """Writes this rank's parts; the receipt for the main process. No other rank is needed."""
        folders = [writer.write() for writer in self._writers]
        records = transaction.adopt(lambda name: f"/__{rank}_" in name)
        return Receipt.pack(folders, records)

    def finish(self, transaction: Transaction, receipts: Mapping[int, bytes]) -> None:
        """The main process, once every rank has written: the folders' indexes, and the records of their files."""
        told = [Receipt.unpack(rank, receipts[rank]) for rank in sorted(receipts)]
        for number, writer in enumerate(self._writers):
            writer.finish([folders[number] for folders, _ in told])
        for _, records in told:
            transaction.add(records)


def whole_optimizer(state: OptimizerState, *, keep: bool) -> OptimizerState:
    """Collective. A divided optimizer state brought together, one tensor at a time; empty where not ``keep``."""
    whole: dict[str, dict[str, Any]] = {}
    for name, values in state.state.items():
        entry = {key: _whole(value) for key, value in values.items()}
        if keep:
            whole[name] = {k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in entry.items()}
    return OptimizerState(state=whole, param_groups=state.param_groups, named=state.named, extra=state.extra)


def _whole(value: Any) -> Any:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def whole_pieces(
    subject: Subject, index: int, bare: Any, state: ModelState, *, keep: bool
) -> tuple[list[Piece], Record]:
    """Collective. One divided model brought together into one file, on the main process (``keep``)."""
    tensors = subject.adapter.full_state_dict(subject.models[index], cpu=True)
    shapes = {key: tuple(value.shape) for key, value in state.tensors.items()}
    shapes.update((alias, shapes[kept]) for alias, kept in state.aliases.items())
    record = {
        **subject.record("model", index, subject.models[index], bare),
        "signature": model_signature(shapes),
        "aliases": dict(state.aliases),
        "files": [layout.whole_name(index)],
    }
    return ([Piece(file=layout.whole_name(index), form="object", value=tensors)] if keep else []), record


# Reading


def model_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of a model's tensors in its folder, by name."""
    from accelerate.checkpoint import dcp

    return dcp.shapes(folder, MODEL)


def read_model(folder: Path, like: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """A model's tensors from its folder: this rank's part where ``like`` has a divided tensor, whole elsewhere."""

    def target(path: tuple[str | int, ...], entry: Any) -> torch.Tensor | None:
        if path[0] != MODEL:
            return None
        return _room(like.get(".".join(map(str, path[1:]))), entry)

    from accelerate.checkpoint import dcp

    nested = dcp.read(folder, target).get(MODEL, {})
    return dict(_flat(nested))


def _flat(value: Any, prefix: str = "") -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield prefix, value
        return
    for key, item in items:
        yield from _flat(item, f"{prefix}.{key}" if prefix else str(key))


def read_optimizer(folder: Path, like: Mapping[str, torch.Tensor]) -> OptimizerState:
    """An optimizer's state from its folder; ``like`` maps a parameter's name to the parameter it is for."""

    def target(path: tuple[str | int, ...], entry: Any) -> torch.Tensor | None:
        name = str(path[2]) if len(path) > 3 and path[1] == "state" else None
        return _room(like.get(name) if name is not None else None, entry)

    from accelerate.checkpoint import dcp

    found = dcp.read(folder, target).get(OPTIMIZER, {})
    groups = found.get("param_groups") or []
    return OptimizerState(
        state=_by_name(found.get("state") or {}),
        param_groups=[{**group, "params": list(group["params"])} for group in groups],
        extra={key: value for key, value in found.items() if key not in ("state", "param_groups")},
    )


def _by_name(state: Any) -> dict[str, Any]:
    return {str(name): values for name, values in (state.items() if isinstance(state, dict) else enumerate(state))}


def _room(like: Any, entry: Any) -> torch.Tensor:
    """Memory to read a tensor into: this rank's part where ``like`` is divided and of its shape."""
    if hasattr(like, "full_tensor") and tuple(like.shape) == tuple(entry.size):
        return torch.empty_like(like, dtype=entry.properties.dtype)
    return torch.empty(entry.size, dtype=entry.properties.dtype)
