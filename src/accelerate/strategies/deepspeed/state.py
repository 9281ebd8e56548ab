"""State of an engine's model: DeepSpeed's own files inside a checkpoint, and whole weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import torch

from accelerate import runtime
from accelerate.checkpoint.adapter import LoadReport, ModelState, OptimizerState, StateAdapter
from accelerate.errors import CheckpointError, CheckpointMismatchError, ConfigError
from accelerate.strategies.deepspeed.folders import ENGINE_CLASSES
from accelerate.strategies.deepspeed.handle import DeepSpeedEngineWrapper
from accelerate.strategies.deepspeed.wrappers import DeepSpeedOptimizerWrapper, DeepSpeedSchedulerWrapper

__all__ = ["DeepSpeedStateAdapter", "GatheringDisabledError"]

_RECORD, _PLAIN = "accelerate_engine.json", "model.safetensors"
_FIRST = "pytorch_model"


class GatheringDisabledError(ConfigError):
    """Whole weights were asked for under ZeRO-3, and the configuration does not let the engine gather them."""


class DeepSpeedStateAdapter(StateAdapter):
    """Engines write and read their own files; a model that is only evaluated is written as its state."""

    engine: ClassVar[bool] = True

    def __init__(
        self,
        handle_of: Callable[[Any], DeepSpeedEngineWrapper | None],
        bare: Callable[[torch.nn.Module], torch.nn.Module],
    ) -> None:
        self._handle_of = handle_of
        self.bare = bare

    def owns(self, obj: Any) -> bool:
        return isinstance(obj, (DeepSpeedOptimizerWrapper, DeepSpeedSchedulerWrapper))

    # Whole weights

    def full_state_dict(self, model: torch.nn.Module, *, cpu: bool = True) -> dict[str, torch.Tensor]:
        """Collective. The weights as the engine computes with them, 16-bit where it does; on rank 0 only under stage 3.

        Raises:
            GatheringDisabledError: stage 3, and the configuration has no gathering. A ValueError.
        """
        handle = self._handle_of(model)
        if handle is None:
            state = model.state_dict()
        elif handle.stage != 3:
            state = handle.engine.module_state_dict()
        else:
            if not handle.engine.zero_gather_16bit_weights_on_model_save():
                raise GatheringDisabledError(
                    "The whole weights of a model under ZeRO stage 3 were asked for, and DeepSpeed's configuration "
                    "does not gather them. Set zero3_save_16bit_model=True in the DeepSpeedPlugin "
                    "(stage3_gather_16bit_weights_on_model_save in the JSON), or save with "
                    "accelerator.save_state() and read the folder with accelerate.utils.deepspeed.zero_to_fp32()."
                )
            return handle.engine._consolidated_16bit_state_dict() or {}
        # The tensors are views of the engine's flat buffers, which would be saved whole with each of them.
        return {
            name: (value.detach().to("cpu", copy=True) if cpu else value.detach().clone())
            if isinstance(value, torch.Tensor)
            else value
            for name, value in state.items()
        }

    # Checkpoints

    engine_classes = ENGINE_CLASSES

    def save_engine(self, model: Any, folder: Path, name: str, **options: Any) -> None:
        handle, rank = self._handle_of(model), runtime.current().topology.rank
        if handle is None:
            _save_plain(model, folder / name, rank)
            return
        handle.engine.save_checkpoint(str(folder), tag=name, save_latest=name == _FIRST, **options)
        if rank == 0:
            record = {"stage": handle.stage, "world_size": runtime.current().topology.world_size}
            (folder / name / _RECORD).write_text(json.dumps(record), encoding="utf-8")

    def load_engine(self, model: Any, folder: Path, name: str, **options: Any) -> None:
        handle = self._handle_of(model)
        if handle is None:
            _load_plain(model, folder / name)
            return
        record = _record(folder / name)
        world = runtime.current().topology.world_size
        same_stage = record["stage"] == handle.stage
        if same_stage and (record["world_size"] == world or handle.stage == 0):
            _native(handle.engine, folder, name, options)
        elif 0 in (record["stage"], handle.stage):
            raise CheckpointMismatchError(
                f"{folder / name} was saved under ZeRO stage {record['stage']}, and this job trains under stage "
                f"{handle.stage}: stage 0 keeps its optimizer's state whole, which DeepSpeed cannot convert. Load it "
                f"under stage {record['stage']}."
            )
        else:
            from accelerate.strategies.deepspeed.universal import load_converted

            load_converted(handle.engine, folder, name, options)
        handle.reset()

    # What engines do themselves

    def model_state(self, model: torch.nn.Module) -> ModelState:
        _engine_only("model_state")

    def load_model_state(
        self, model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], *, strict: bool = True
    ) -> LoadReport:
        _engine_only("load_model_state")

    def optimizer_state(
        self, optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module | None]
    ) -> OptimizerState:
        _engine_only("optimizer_state")

    def load_optimizer_state(
        self,
        optimizer: torch.optim.Optimizer,
        models: Sequence[torch.nn.Module | None],
        state: OptimizerState,
        *,
        strict: bool = True,
    ) -> LoadReport:
        _engine_only("load_optimizer_state")


def _engine_only(call: str) -> NoReturn:
    raise TypeError(f"DeepSpeed's engine writes its own files; {call}() is for strategies that leave that to us")


def _native(engine: Any, folder: Path, name: str, options: dict[str, Any]) -> None:
    found, _ = engine.load_checkpoint(str(folder), tag=name, **options)
    if found is None:
        raise CheckpointError(f"DeepSpeed found no checkpoint of its own in {folder / name}.")


def _record(folder: Path) -> dict[str, int]:
    """The stage and number of ranks that an engine's folder was written under; from its files where there is no
    record, as in checkpoints of other programs."""
    path = folder / _RECORD
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]
    parts = list(folder.glob("*zero_pp_rank_*_optim_states.pt"))
    if not parts:
        return {"stage": 0, "world_size": 1}
    if list(folder.glob("zero_pp_rank_*_model_states.pt")):
        return {"stage": 3, "world_size": len(parts)}
    state = torch.load(parts[0], map_location="cpu", weights_only=False, mmap=True)
    return {"stage": int(state["optimizer_state_dict"]["zero_stage"]), "world_size": len(parts)}


def _save_plain(model: torch.nn.Module, folder: Path, rank: int) -> None:
    from safetensors.torch import save_model

    if rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        save_model(model, str(folder / _PLAIN))


def _load_plain(model: torch.nn.Module, folder: Path) -> None:
    from safetensors.torch import load_model

    load_model(model, str(folder / _PLAIN))
