"""A checkpoint opened for reading, ours or one of the same layout that somebody else wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from accelerate.checkpoint import layout
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

    def object(self, record: Record) -> Any:
        """What the one file of a record holds.

        Raises:
            PickleRefusedError: it would have to be unpickled.
        """
        return read_object(self.path / record["files"][0], allow_pickle=self._allow_pickle)

    def step(self) -> int | None:
        """The accelerator's step count."""
        if "step" in self.content:
            return int(self.content["step"])
        for record in self.of("rng")[:1]:
            return int(self.object(record).get("step", 0))
        return None

    # Models

    def tensors(self, record: Record) -> dict[str, Any]:
        """A model's tensors by name, aliases included, and what it keeps beside tensors."""
        found: dict[str, Any] = {}
        aliases = dict(record.get("aliases", {}))
        for file in record["files"]:
            path = self.path / file
            if file.endswith(".safetensors"):
                found.update(read_tensors(path))
                aliases.update((k, v) for k, v in read_header(path)[1].items() if k not in found and v in found)
            elif file.endswith(".bin"):
                found.update(read_object(path, allow_pickle=self._allow_pickle))
        found.update((name, found[kept]) for name, kept in aliases.items() if kept in found)
        return found

    def shapes(self, record: Record) -> dict[str, tuple[int, ...]]:
        """The shapes of a model's tensors by name, aliases included."""
        return {n: tuple(t.shape) for n, t in self.tensors(record).items() if isinstance(t, torch.Tensor)}

    # Optimizers

    def optimizer(self, record: Record, names: list[list[str]] | None = None) -> OptimizerState:
        """An optimizer's state by name. ``names`` stand in where the checkpoint has none.

        Raises:
            CheckpointError: its groups are not as long as ``names`` says.
        """
        state = self.object(record)
        known = record.get("parameters", names)
        groups = state.get("param_groups", []) if isinstance(state, Mapping) else []
        if known is None or [len(g["params"]) for g in groups] != [len(own) for own in known]:
            raise CheckpointError(
                f"{self.path / record['files'][0]} has parameter groups of {[len(g['params']) for g in groups]} "
                f"parameters, expected were {[len(own) for own in known or []]}."
            )
        return from_torch_layout(state, known, bool(record.get("named", False)))

    # Checkpoints without a manifest

    def _scan(self) -> list[Record]:
        records = [*self._scan_models()]
        for kind, name in (("optimizer", "optimizer.bin"), ("scheduler", "scheduler.bin")):
            records += self._numbered(kind, name)
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

    def _scan_models(self) -> Iterator[Record]:
        seen: set[int] = set()
        for name in (layout.SAFE_WEIGHTS_NAME, layout.WEIGHTS_NAME):
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
