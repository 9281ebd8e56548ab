"""The parts of a checkpoint one by one, for programs that put one together themselves.

Nothing here is atomic or verified, and objects go by their order: ``Accelerator.save_state`` does better.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from accelerate.checkpoint import layout, rng_files
from accelerate.checkpoint.files import save, writes_here
from accelerate.checkpoint.objects import read_object, write_object
from accelerate.checkpoint.reader import OpenCheckpoint
from accelerate.checkpoint.streams import HashingWriter
from accelerate.errors import CheckpointNotFoundError

__all__ = ["load_accelerator_state", "load_custom_state", "save_accelerator_state", "save_custom_state"]

PathLike = str | os.PathLike[str]


def _write(path: Path, value: Any) -> None:
    with HashingWriter(path, durable=False) as file:
        write_object(file, value, path.name)


def save_accelerator_state(
    output_dir: PathLike,
    model_states: Sequence[Mapping[str, Any]],
    optimizers: Sequence[Any],
    schedulers: Sequence[Any],
    dataloaders: Sequence[Any],
    process_index: int,
    step: int,
    scaler: Any | None = None,
    save_on_each_node: bool = False,
    safe_serialization: bool = True,
) -> Path:
    """Writes states into a folder that is there, under the usual names; every rank its own random states.

    Raises:
        CheckpointError: something could only be written by pickling it.
    """
    folder = Path(output_dir)
    for index, state in enumerate(model_states):
        name = layout.model_name(index, safe=safe_serialization)
        save(dict(state), folder / name, save_on_each_node, safe_serialization)
    if writes_here(save_on_each_node):
        for index, optimizer in enumerate(optimizers):
            _write(folder / layout.numbered("optimizer.bin", index), optimizer.state_dict())
        for index, scheduler in enumerate(schedulers):
            _write(folder / layout.numbered("scheduler.bin", index), scheduler.state_dict())
        for index, loader in enumerate(dataloaders):
            if hasattr(loader, "state_dict"):
                _write(folder / layout.numbered("sampler.bin", index), loader.state_dict())
        if scaler is not None:
            _write(folder / "scaler.pt", scaler.state_dict())
    (folder / layout.rng_name(process_index)).write_bytes(rng_files.capture(step))
    return folder


def load_accelerator_state(
    input_dir: PathLike,
    models: Sequence[torch.nn.Module],
    optimizers: Sequence[Any],
    schedulers: Sequence[Any],
    dataloaders: Sequence[Any],
    process_index: int,
    scaler: Any | None = None,
    map_location: Any = None,
    load_kwargs: Mapping[str, Any] | None = None,
    **load_model_func_kwargs: Any,
) -> dict[str, Any]:
    """Reads what :func:`save_accelerator_state` wrote, by order; ``{"step": …}`` of the accelerator.

    Tensors go where the parameters are, whatever ``map_location`` says. ``load_kwargs={"weights_only": False}`` lets
    older files be unpickled; ``load_model_func_kwargs`` go to ``load_state_dict`` of the models.

    Raises:
        CheckpointNotFoundError: a file is missing.
    """
    folder = Path(input_dir)
    pickles = dict(load_kwargs or {}).get("weights_only", True) is False
    source = OpenCheckpoint(folder, None, allow_pickle=pickles)
    records = {record["index"]: record for record in source.of("model")}
    for index, model in enumerate(models):
        if index not in records:
            raise CheckpointNotFoundError(f"There is no {layout.model_name(index)} in {folder}.")
        model.load_state_dict(source.tensors(records[index], {}), **load_model_func_kwargs)
    for name, objects in (("optimizer.bin", optimizers), ("scheduler.bin", schedulers)):
        for index, obj in enumerate(objects):
            obj.load_state_dict(_read(folder / layout.numbered(name, index), pickles))
    for index, loader in enumerate(dataloaders):
        path = folder / layout.numbered("sampler.bin", index)
        if path.exists() and hasattr(loader, "load_state_dict"):
            loader.load_state_dict(_read(path, pickles))
    if scaler is not None:
        scaler.load_state_dict(_read(folder / "scaler.pt", pickles))
    path = folder / layout.rng_name(process_index)
    if not path.exists():
        return {}
    states = _read(path, pickles)
    rng_files.restore(states)
    return {"step": states["step"]} if "step" in states else {}


def _read(path: Path, allow_pickle: bool) -> Any:
    if not path.exists():
        raise CheckpointNotFoundError(f"There is no {path.name} in {path.parent}.")
    return read_object(path, allow_pickle=allow_pickle, mapped=False)


def save_custom_state(obj: Any, path: PathLike, index: int = 0, save_on_each_node: bool = False) -> None:
    """Writes ``obj.state_dict()`` into the folder ``path`` as that of the registered object ``index``."""
    if writes_here(save_on_each_node):
        _write(Path(path) / layout.custom_name(index), obj.state_dict())


def load_custom_state(obj: Any, path: PathLike, index: int = 0) -> None:
    """Reads what :func:`save_custom_state` wrote into ``obj``.

    Raises:
        CheckpointNotFoundError: there is no such file.
    """
    obj.load_state_dict(_read(Path(path) / layout.custom_name(index), False))
