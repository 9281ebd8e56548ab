"""Divided weights brought together into files that any library reads, without a process group."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from accelerate import runtime
from accelerate.checkpoint import dcp
from accelerate.checkpoint.files import ONE_FILE, write_model
from accelerate.checkpoint.manifest import Manifest
from accelerate.errors import CheckpointError
from accelerate.strategies.sharded.saving import MODEL_NAME

__all__ = ["merge", "merge_fsdp_weights", "read_whole"]

PathLike = str | os.PathLike[str]


def merge_fsdp_weights(
    checkpoint_dir: PathLike,
    output_path: PathLike,
    safe_serialization: bool = True,
    remove_checkpoint_dir: bool = False,
) -> None:
    """Writes the weights in a sharded checkpoint as one file, ``model.safetensors`` or ``pytorch_model.bin``.

    In a job of several processes the main one does the work and the others wait.

    Args:
        checkpoint_dir: The folder with the shards, or the checkpoint that holds just one such folder.
        output_path: The folder to write to, which is made where it is not there.
        safe_serialization: Safetensors rather than a pickle.
        remove_checkpoint_dir: Whether the folder with the shards is removed once the weights are written.

    Raises:
        CheckpointError: there are no shards.
    """
    merge(checkpoint_dir, output_path, safe=safe_serialization, remove=remove_checkpoint_dir)


def merge(
    checkpoint_dir: PathLike,
    output_path: PathLike,
    *,
    safe: bool,
    remove: bool,
    max_shard_size: int | str | None = None,
) -> None:
    """As :func:`merge_fsdp_weights`, into several files of at most ``max_shard_size`` where that is given."""
    held = runtime.find()
    if held is None or held.topology.is_main:
        folder = _folder(Path(checkpoint_dir))
        write_model(read_whole(folder), output_path, max_shard_size=max_shard_size or ONE_FILE, safe=safe)
        if remove:
            shutil.rmtree(folder)
    if held is not None:
        held.collectives.barrier()


def _folder(path: Path) -> Path:
    """The one folder of model shards at or below ``path``."""
    if dcp.is_folder(path):
        return path
    inside = sorted(p for p in path.glob(f"{MODEL_NAME}*") if dcp.is_folder(p)) if path.is_dir() else []
    if len(inside) == 1:
        return inside[0]
    if inside:
        raise CheckpointError(
            f"{path} holds the shards of {len(inside)} models: {', '.join(p.name for p in inside)}. Name one of them."
        )
    raise CheckpointError(
        f"{path} holds no sharded weights: there is no {dcp.METADATA} in it, nor a folder {MODEL_NAME}_0. Give the "
        "folder that was written with state_dict_type='SHARDED_STATE_DICT'."
    )


def read_whole(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a model's folder, whole, by name; shared ones under all their names."""
    shapes = dcp.shapes(folder, "model")
    found = dcp.read(folder, lambda path, entry: torch.empty(entry.size, dtype=entry.properties.dtype))
    tensors = _by_name(found.get("model", {}))
    if not shapes:
        raise CheckpointError(
            f"{folder} holds {', '.join(sorted(map(str, found))) or 'nothing'} and no model. Give the folder of a "
            f"model, such as {MODEL_NAME}_0."
        )
    aliases = {**_recorded_aliases(folder), **found.get("aliases", {})}
    tensors.update((name, tensors[kept]) for name, kept in aliases.items() if kept in tensors)
    return tensors


def _by_name(nested: Any, prefix: str = "") -> dict[str, torch.Tensor]:
    items = nested.items() if isinstance(nested, Mapping) else enumerate(nested) if isinstance(nested, list) else ()
    tensors: dict[str, torch.Tensor] = {}
    for key, value in items:
        if isinstance(value, torch.Tensor):
            tensors[f"{prefix}{key}"] = value
        else:
            tensors.update(_by_name(value, f"{prefix}{key}."))
    return tensors


def _recorded_aliases(folder: Path) -> dict[str, str]:
    """What the checkpoint around a folder says of shared tensors."""
    manifest = Manifest.read(folder.parent)
    for record in manifest.content.get("objects", []) if manifest is not None else []:
        if record.get("kind") == "model" and folder.name in record.get("files", []):
            return dict(record.get("aliases", {}))
    return {}
