"""Going on from an engine's checkpoint on another number of ranks, or under another ZeRO stage."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from accelerate import runtime
from accelerate.comm import operations
from accelerate.errors import CheckpointError

__all__ = ["convert", "load_converted", "zero_to_fp32"]


def zero_to_fp32(checkpoint_dir: str | os.PathLike[str], name: str | None = None) -> dict[str, torch.Tensor]:
    """The whole float32 weights out of an engine's folder in a checkpoint, put together from its ranks' parts.

    Args:
        checkpoint_dir: A checkpoint of ``save_state`` (or of DeepSpeed's own ``save_checkpoint``).
        name: The engine's folder, such as "pytorch_model_1"; the first engine's where left out.
    """
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    with contextlib.redirect_stdout(io.StringIO()):
        found: dict[str, torch.Tensor] = get_fp32_state_dict_from_zero_checkpoint(str(checkpoint_dir), tag=name)
    return found


def convert(source: Path, target: Path) -> None:
    """Writes DeepSpeed's universal form of an engine's folder: a file for each parameter and state, whole.

    Raises:
        CheckpointError: it cannot be converted.
    """
    from deepspeed.checkpoint.ds_to_universal import main

    arguments = argparse.Namespace(
        input_folder=str(source),
        output_folder=str(target),
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main(arguments)
    except Exception as error:
        raise CheckpointError(f"DeepSpeed could not convert {source} for other ranks or stages: {error}") from error


def load_converted(engine: Any, folder: Path, name: str, options: dict[str, Any]) -> None:
    """Collective. Loads an engine's folder that other ranks or another stage wrote, by way of its universal form,
    which each machine makes beside the checkpoint (or in its temporary folder) and throws away again."""
    with _converted(folder, name) as base:
        _complete(base / name, runtime.current().topology.world_size, stage3=engine.zero_optimization_stage() == 3)
        operations.barrier()
        before = engine._config.load_universal_checkpoint
        engine._config.load_universal_checkpoint = True
        try:
            found, _ = engine.load_checkpoint(str(base), tag=name, **options)
        finally:
            engine._config.load_universal_checkpoint = before
        if found is None:
            raise CheckpointError(f"DeepSpeed found nothing in the universal form of {folder / name}.")
    _restore_untrained(engine, folder, name)


@contextlib.contextmanager
def _converted(folder: Path, name: str) -> Iterator[Path]:
    topology = runtime.current().topology
    place, error = None, None
    if topology.is_local_main:
        near = folder.parent if os.access(folder.parent, os.W_OK) else None
        place = tempfile.mkdtemp(prefix=f".{folder.name}.universal-", dir=near)
        try:
            convert(folder / name, Path(place) / name)
        except CheckpointError as raised:
            error = str(raised)
    told = operations.gather_object([(topology.node_rank, place, error)])
    try:
        failed = next((message for _, _, message in told if message), None)
        if failed:
            raise CheckpointError(failed)
        yield Path(next(where for node, where, _ in told if node == topology.node_rank and where))
        operations.barrier()
    finally:
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)


def _complete(folder: Path, ranks: int, *, stage3: bool) -> None:
    """Gives every rank the file of common state that its engine looks for, which is alike for all."""
    if not runtime.current().topology.is_local_main:
        return
    known = sorted(folder.glob("*mp_rank_00_model_states.pt"))
    names = ["mp_rank_00_model_states.pt"]
    if stage3:
        names = [f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in range(ranks)]
    for name in names:
        if not (folder / name).exists():
            shutil.copy2(known[0], folder / name)


def _restore_untrained(engine: Any, folder: Path, name: str) -> None:
    """Collective. Buffers and frozen parameters, which have no optimizer state and so no universal form."""
    module = engine.module
    persistent = set(module.state_dict())
    buffers = {key: value for key, value in module.named_buffers() if key in persistent}
    frozen = {key: value for key, value in module.named_parameters() if not value.requires_grad}
    if not buffers and not frozen:
        return
    saved = zero_to_fp32(folder, name)
    with torch.no_grad():
        for key, buffer in buffers.items():
            if key in saved:
                buffer.copy_(saved[key])
        for key, parameter in frozen.items():
            if key not in saved:
                raise CheckpointError(f"The frozen parameter {key!r} is not in {folder / name}.")
            if hasattr(parameter, "ds_id"):
                import deepspeed

                with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                    if runtime.current().topology.rank == 0:
                        parameter.copy_(saved[key])
            else:
                parameter.copy_(saved[key])
