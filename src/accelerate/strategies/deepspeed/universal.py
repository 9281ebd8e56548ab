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
from accelerate.strategies.deepspeed.folders import refuse_strange

__all__ = ["convert", "load_converted", "zero_to_fp32"]

_OPTIMIZER, _GROUPS = "optimizer_state_dict", "param_groups"


def zero_to_fp32(
    checkpoint_dir: str | os.PathLike[str], name: str | None = None, *, allow_pickle: bool = False
) -> dict[str, torch.Tensor]:
    """The whole float32 weights out of an engine's folder in a checkpoint, put together from its ranks' parts.

    Args:
        checkpoint_dir: A checkpoint of ``save_state`` (or of DeepSpeed's own ``save_checkpoint``).
        name: The engine's folder, such as "pytorch_model_1"; the first engine's where left out.
        allow_pickle: Unpickle whatever the files hold, which runs the code that they name.

    Raises:
        PickleRefusedError: they hold what DeepSpeed does not write.
    """
    if not allow_pickle:
        refuse_strange(Path(checkpoint_dir))
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
        whole = base / name
        if runtime.current().topology.is_local_main:
            _complete(whole, runtime.current().topology.world_size, stage3=engine.zero_optimization_stage() == 3)
            _bridge(whole)
        operations.barrier()
        groups = torch.load(whole / "zero" / "optimizer_state.pt", map_location="cpu", weights_only=False)[_GROUPS]
        before = engine._config.load_universal_checkpoint
        engine._config.load_universal_checkpoint = True
        try:
            found, _ = engine.load_checkpoint(str(base), tag=name, **options)
        finally:
            engine._config.load_universal_checkpoint = before
        if found is None:
            raise CheckpointError(f"DeepSpeed found nothing in the universal form of {folder / name}.")
    _restore_groups(engine, groups)
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
    known = sorted(folder.glob("*mp_rank_00_model_states.pt"))
    names = ["mp_rank_00_model_states.pt"]
    if stage3:
        names = [f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in range(ranks)]
    for name in names:
        if not (folder / name).exists():
            shutil.copy2(known[0], folder / name)


def _bridge(folder: Path) -> None:
    """Makes the universal form readable under every stage: that of stage 3 has another shape than that of 1 and 2."""
    path = folder / "zero" / "optimizer_state.pt"
    common = torch.load(path, map_location="cpu", weights_only=False)
    written = common.get(_OPTIMIZER)
    if written is None:
        steps = [torch.load(p, weights_only=False) for p in sorted((folder / "zero").rglob("step.pt"))[:1]]
        common[_OPTIMIZER] = {"state": {0: {"step": steps[0] if steps else 0}}, _GROUPS: common[_GROUPS]}
    else:
        from deepspeed import __version__

        common.setdefault("ds_version", __version__)
        _shape(folder, written["state"][0].get("step"))
    torch.save(common, path)


def _shape(folder: Path, step: Any) -> None:
    """Gives the flat tensors that stage 3 writes their shapes, and every parameter its step."""
    states = torch.load(next(folder.glob("*_model_states.pt")), map_location="cpu", weights_only=False)
    shapes = {name: shape for group in states["param_shapes"] for name, shape in group.items()}
    for name, shape in shapes.items():
        place = folder / "zero" / name
        for path in place.glob("*.pt"):
            held = torch.load(path, map_location="cpu", weights_only=False)
            if isinstance(held, torch.Tensor):
                torch.save({"param": held.reshape(shape)}, path)
        if step is not None:
            torch.save(step, place / "step.pt")


def _restore_groups(engine: Any, groups: list[dict[str, Any]]) -> None:
    """Every group gets its own settings back: stage 3 gives all of them those of the first."""
    own = engine.basic_optimizer.param_groups
    if len(own) == len(groups):
        for group, saved in zip(own, groups, strict=True):
            group.update((key, value) for key, value in saved.items() if key != "params")


def _restore_untrained(engine: Any, folder: Path, name: str) -> None:
    """Collective. Buffers and frozen parameters, which have no optimizer state and so no universal form."""
    module = engine.module
    persistent = set(module.state_dict())
    buffers = {key: value for key, value in module.named_buffers() if key in persistent}
    frozen = {key: value for key, value in module.named_parameters() if not value.requires_grad}
    if not buffers and not frozen:
        return
    common = folder / name / "mp_rank_00_model_states.pt"
    if common.is_file():  # up to stage 2 every rank has the whole model, and one file holds it
        saved = torch.load(common, map_location="cpu", weights_only=False)["module"]
    else:
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
