"""Single files and whole models outside checkpoints: ``save``, ``load``, ``save_model``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from accelerate import runtime
from accelerate.checkpoint import layout
from accelerate.checkpoint.objects import numpy_allowed
from accelerate.checkpoint.plain import tied_names
from accelerate.checkpoint.streams import HashingWriter
from accelerate.checkpoint.tensors import write_tensors
from accelerate.errors import CheckpointError, CheckpointNotFoundError
from accelerate.logging import get_logger

__all__ = ["ONE_FILE", "clean_state_dict_for_safetensors", "load", "save", "write_model", "writes_here"]

ONE_FILE = 1 << 62
"""A ``max_shard_size`` in bytes that no model reaches."""

log = get_logger(__name__)

PathLike = str | os.PathLike[str]


def writes_here(each_node: bool) -> bool:
    """Whether this rank writes what is written once: the main process, or that of every machine."""
    held = runtime.find()
    if held is None:
        return True
    return held.topology.is_local_main if each_node else held.topology.is_main


def save(obj: Any, f: Any, save_on_each_node: bool = False, safe_serialization: bool = False) -> None:
    """Writes ``obj`` to a file once: on the main process, or on that of every machine where ``save_on_each_node``.

    ``safe_serialization`` writes a dictionary of tensors as safetensors, else ``torch.save`` writes anything. A path is
    replaced at once, so a reader finds the old file or the new one.

    Raises:
        CheckpointError: the tensors cannot be written as safetensors.
    """
    if not writes_here(save_on_each_node):
        return
    if not isinstance(f, (str, os.PathLike)):
        if safe_serialization:
            raise CheckpointError("safe_serialization=True needs a path to write to, not an open file.")
        torch.save(obj, f)
        return
    path = Path(f)
    draft = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        with HashingWriter(draft, durable=False) as file:
            if safe_serialization:
                aliases = tied_names(obj)
                write_tensors(file, {name: t for name, t in obj.items() if name not in aliases}, aliases)
            else:
                torch.save(obj, file)  # type: ignore[arg-type]  # it needs `write` and `flush`, no more
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def load(f: Any, map_location: Any = None, **kwargs: Any) -> Any:
    """What ``torch.save`` wrote, tensors at ``map_location``. Plain values, tensors and NumPy arrays are read; anything
    else is unpickled only where ``weights_only=False`` asks for it. Other ``kwargs`` go to ``torch.load``.

    Raises:
        pickle.UnpicklingError: the file holds something else.
    """
    if kwargs.get("weights_only", True) is False:
        return torch.load(f, map_location=map_location, **kwargs)
    with numpy_allowed():
        return torch.load(f, map_location=map_location, **{**kwargs, "weights_only": True})


def clean_state_dict_for_safetensors(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors as safetensors' own writer takes them: contiguous, and one of those that share memory."""
    aliases = tied_names(state_dict)
    if aliases:
        log.warning(f"Shared tensors are saved once; left out: {', '.join(sorted(aliases))}.")
    kept = {name: tensor for name, tensor in state_dict.items() if name not in aliases}
    seen: set[tuple[torch.device, int]] = set()
    cleaned = {}
    for name, tensor in kept.items():
        storage = (tensor.device, tensor.untyped_storage().data_ptr())
        # A part of another's memory needs memory of its own.
        whole = tensor.is_contiguous() and storage not in seen
        cleaned[name] = tensor if whole else tensor.clone(memory_format=torch.contiguous_format)
        seen.add(storage)
    return cleaned


def write_model(
    tensors: Mapping[str, Any], folder: PathLike, *, max_shard_size: int | str, safe: bool, each_node: bool = False
) -> None:
    """Writes a model's tensors as one file, or as shards of at most ``max_shard_size`` with an index.

    Shards of an earlier, larger save at the same place are removed.

    Raises:
        CheckpointNotFoundError: ``folder`` is a file.
    """
    if os.path.isfile(folder):
        raise CheckpointNotFoundError(f"save_model needs a folder, and {os.fspath(folder)!r} is a file.")
    if not writes_here(each_node) or not (tensors or writes_here(False)):
        return  # a divided model is brought together on the main process only
    from accelerate.checkpoint.parts import shards_of

    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    name = layout.model_name(0, safe=safe)
    table = {key: value for key, value in tensors.items() if isinstance(value, torch.Tensor)}
    aliases = tied_names(table) if safe else {}
    pieces = shards_of({key: value for key, value in table.items() if key not in aliases}, name, max_shard_size)
    written = set()
    for file, part in pieces:
        save({**part} if not safe else part, place / file, each_node, safe)
        written.add(file)
    index = place / layout.index_name(name)
    if len(pieces) > 1:
        size = sum(t.numel() * t.element_size() for _, part in pieces for t in part.values())
        places = {key: file for file, part in pieces for key in part}
        text = json.dumps({"metadata": {"total_size": size}, "weight_map": places}, indent=2, sort_keys=True) + "\n"
        index.write_text(text)
        written.add(index.name)
    _remove_stale(place, name, written)


def _remove_stale(folder: Path, name: str, written: set[str]) -> None:
    stem, dot, suffix = name.partition(".")
    pattern = re.compile(rf"{re.escape(stem)}(-\d{{5}}-of-\d{{5}})?{re.escape(dot + suffix)}(\.index\.json)?")
    for path in folder.iterdir():
        if pattern.fullmatch(path.name) and path.name not in written:
            path.unlink()
