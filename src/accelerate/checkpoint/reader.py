"""A checkpoint opened for reading, ours or one of the same layout that somebody else wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from accelerate.checkpoint import divided, layout
from accelerate.checkpoint.adapter import OptimizerState
from accelerate.checkpoint.manifest import MANIFEST, Manifest
from accelerate.checkpoint.objects import read_object
from accelerate.checkpoint.optimizer_state import from_torch_layout
from accelerate.checkpoint.parts import Record
from accelerate.checkpoint.tensors import read_header, read_tensors
from accelerate.errors import CheckpointDamagedError, CheckpointError

__all__ = ["OpenCheckpoint"]

MARK = "accelerate_checkpoint"


class OpenCheckpoint:
    """The records of a checkpoint and what their files hold. Tensors are read when they are used.

    ``legacy``: there is no manifest; objects are known by the numbers of their files only.
    """

    def __init__(self, path: Path, manifest: Manifest | None, *, allow_pickle: bool = False) -> None:
        self.path = path
        self.manifest = manifest
        self.legacy = manifest is None
        self._allow_pickle = allow_pickle
        self.content: dict[str, Any] = manifest.content if manifest is not None else {"objects": self._scan()}

    def of(self, kind: str) -> list[Record]:
        """The records of one kind of object, by index."""
        return sorted((r for r in self.content["objects"] if r["kind"] == kind), key=lambda r: r["index"])

    def object(self, record: Record, *, mapped: bool = False) -> Any:
        """What the one file of a record holds; ``mapped`` tensors are views of the file.

        Raises:
            PickleRefusedError: it would have to be unpickled.
        """
        return read_object(self.path / record["files"][0], allow_pickle=self._allow_pickle, mapped=mapped)

    def step(self) -> int | None:
        """The accelerator's step count."""
        if "step" in self.content:
            return int(self.content["step"])
        for record in self.of("rng")[:1]:
            return int(self.object(record).get("step", 0))
        return None

    def _folder(self, record: Record) -> Path | None:
        """The folder of parts that a record's state is in; None where it is in files."""
        path = self.path / record["files"][0]
        return path if layout.is_divided(path) else None

    # Models

    def tensors(self, record: Record, like: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """A model's tensors by name, aliases included. ``like`` are the model's: where one of them is divided, and so
        is the checkpoint, only this rank's part is read."""
        folder = self._folder(record)
        found = divided.read_model(folder, like) if folder is not None else self._from_files(record)
        for name, kept in self._aliases(record, found).items():
            found.setdefault(name, found[kept])
        return found

    def _from_files(self, record: Record) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for file in record["files"]:
            if file.endswith(".safetensors"):
                found.update(read_tensors(self.path / file))
            elif file.endswith(".bin") and file != record.get("extra"):
                found.update(read_object(self.path / file, allow_pickle=self._allow_pickle))
        return found

    def _aliases(self, record: Record, found: Mapping[str, Any]) -> dict[str, str]:
        aliases = dict(record.get("aliases", {}))
        if self.legacy:
            for file in record["files"]:
                if file.endswith(".safetensors"):
                    aliases.update(read_header(self.path / file)[1])
        return {name: kept for name, kept in aliases.items() if kept in found}

    def shapes(self, record: Record) -> dict[str, tuple[int, ...]]:
        """The shapes of a model's tensors by name, aliases included."""
        folder = self._folder(record)
        if folder is None:
            found: Mapping[str, Any] = self._from_files(record)
            shapes = {n: tuple(t.shape) for n, t in found.items() if isinstance(t, torch.Tensor)}
        else:
            shapes = divided.model_shapes(folder)
        shapes.update((name, shapes[kept]) for name, kept in self._aliases(record, shapes).items())
        return shapes

    # Optimizers

    def optimizer(
        self, record: Record, like: Mapping[str, torch.Tensor], names: list[list[str]] | None = None
    ) -> OptimizerState:
        """An optimizer's state by name. ``like`` are the parameters now, by name; ``names`` stand in where the
        checkpoint has none.

        Raises:
            CheckpointError: its groups are not as long as ``names`` says.
        """
        folder = self._folder(record)
        if folder is not None:
            return divided.read_optimizer(folder, like)
        state = self.object(record, mapped=True)
        groups = state.get("param_groups", []) if isinstance(state, Mapping) else []
        if any(isinstance(name, str) for group in groups for name in group["params"]):
            known: Any = [list(group["params"]) for group in groups]
            order = {name: index for index, name in enumerate(name for group in known for name in group)}
            groups = [{**group, "params": [order[name] for name in group["params"]]} for group in groups]
            table = {order[name]: values for name, values in state["state"].items() if name in order}
            state = {**state, "state": table, "param_groups": groups}
        else:
            known = record.get("parameters", names)
        if known is None or [len(g["params"]) for g in groups] != [len(own) for own in known]:
            raise CheckpointError(
                f"{self.path / record['files'][0]} has parameter groups of {[len(g['params']) for g in groups]} "
                f"parameters, expected were {[len(own) for own in known or []]}."
            )
        return from_torch_layout(state, known, bool(record.get("named", False)))

    # Checkpoints without a manifest

    def _scan(self) -> list[Record]:
        records = [*self._scan_models()]
        records += self._numbered("optimizer", "optimizer.bin") or self._folders("optimizer", layout.optimizer_folder)
        records += self._numbered("scheduler", "scheduler.bin")
        loaders = {r["index"]: r for r in self._numbered("loader", "sampler.bin")}
        loaders.update((r["index"], r) for r in self._numbered("loader", "dl_state_dict.bin"))
        records += loaders.values()
        records += self._numbered("object", "custom_checkpoint.pkl")
        records += self._numbered("rng", "random_states.pkl")
        if (self.path / "scaler.pt").exists():
            records.append({"kind": "scaler", "index": 0, "files": ["scaler.pt"]})
        return records

    def _numbered(self, kind: str, name: str) -> list[Record]:
        return [
            {"kind": kind, "index": index, "names": [], "token": "", "class": f"?.{kind}", "files": [path.name]}
            for index, path in layout.indexed(self.path, name)
            if path.is_file()
        ]

    def _folders(self, kind: str, name: Callable[[int], str]) -> list[Record]:
        found: list[Record] = []
        while layout.is_divided(self.path / name(len(found))):
            index = len(found)
            found.append(
                {"kind": kind, "index": index, "names": [], "token": "", "class": f"?.{kind}", "files": [name(index)]}
            )
        return found

    def _scan_models(self) -> Iterator[Record]:
        seen: set[int] = set()
        yield from self._folders("model", layout.model_folder)
        for name in (layout.SAFE_WEIGHTS_NAME, layout.WEIGHTS_NAME, layout.whole_name(0)):
            for index, files in self._weights(name):
                if index in seen:
                    continue
                seen.add(index)
                self._refuse_marked(files)
                yield {
                    "kind": "model", "index": index, "names": [], "token": "", "class": "?.model", "files": files,
                }  # fmt: skip

    def _weights(self, name: str) -> list[tuple[int, list[str]]]:
        whole = [(index, [path.name]) for index, path in layout.indexed(self.path, name)]
        sharded = []
        for index, path in layout.indexed(self.path, layout.index_name(name)):
            shards = json.loads(path.read_text())["weight_map"].values()
            sharded.append((index, sorted(set(shards))))
        return sorted([*whole, *sharded])

    def _refuse_marked(self, files: list[str]) -> None:
        for file in files:
            if file.endswith(".safetensors") and MARK in read_header(self.path / file)[1]:
                raise CheckpointDamagedError(
                    f"The checkpoint {self.path} is damaged; nothing was loaded.\n  {MANIFEST} is missing, which "
                    f"{file} was written with. Without it nothing can be verified; take another checkpoint."
                )
