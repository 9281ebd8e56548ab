"""State of models that ``fully_shard`` divided: their own DTensors, read and written in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from accelerate.checkpoint.adapter import LoadReport, OptimizerState
from accelerate.checkpoint.naming import parameter_names, strip_markers
from accelerate.checkpoint.optimizer_state import from_torch_layout, restore
from accelerate.strategies.fsdp2.shard import fsdp_modules
from accelerate.strategies.sharded.state import ShardedStateAdapter, copy_into, fitted, parameters_by_name

__all__ = ["Fsdp2StateAdapter"]


class Fsdp2StateAdapter(ShardedStateAdapter):
    """Reads and writes this rank's parts; nothing is gathered unless layouts differ."""

    def tensors(self, model: torch.nn.Module) -> dict[str, Any]:
        for module in fsdp_modules(model):
            module.reshard()
        return {strip_markers(name): value for name, value in model.state_dict().items()}

    def assign(self, model: torch.nn.Module, values: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        for name, value in values.items():
            copy_into(expected[name], value)

    def layout(
        self, optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module | None]
    ) -> dict[str, torch.Tensor]:
        return parameters_by_name(optimizer, parameter_names(optimizer, models)[0])

    def optimizer_names(
        self, optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module | None]
    ) -> list[list[str]]:
        return parameter_names(optimizer, models)[0]

    def optimizer_state(
        self, optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module | None]
    ) -> OptimizerState:
        names, named = parameter_names(optimizer, models)
        return from_torch_layout(optimizer.state_dict(), names, named)

    def load_optimizer_state(
        self,
        optimizer: torch.optim.Optimizer,
        models: Sequence[torch.nn.Module | None],
        state: OptimizerState,
        *,
        strict: bool = True,
    ) -> LoadReport:
        names, _ = parameter_names(optimizer, models)
        parameters = parameters_by_name(optimizer, names)
        values = {
            name: {key: fitted(value, parameters[name]) for key, value in entry.items()}
            for name, entry in state.state.items()
            if name in parameters
        }
        rest = {name: entry for name, entry in state.state.items() if name not in parameters}
        divided = OptimizerState(
            state={**values, **rest}, param_groups=state.param_groups, named=state.named, extra=state.extra
        )
        return restore(optimizer, names, divided, strict=strict)
