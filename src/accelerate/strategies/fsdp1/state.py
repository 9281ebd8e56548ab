"""State of models that ``FullyShardedDataParallel`` divided, by way of torch's sharded state dictionaries.

torch keeps flat parameters here, so what is read are copies of this rank's parts, and what is written goes through
torch's own loading. Nothing goes through ``offload_to_cpu``, which frees memory too early where the device is the CPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
)

from accelerate.checkpoint.adapter import LoadReport, OptimizerState
from accelerate.checkpoint.naming import parameter_names, strip_markers
from accelerate.errors import CheckpointError, CheckpointMismatchError
from accelerate.strategies.fsdp1.flat import handles, holders, shared_by_name
from accelerate.strategies.sharded.state import ShardedStateAdapter, copy_into, fitted, keep_one, shared_names

__all__ = ["Fsdp1StateAdapter"]


@contextmanager
def _sharded(model: torch.nn.Module) -> Iterator[None]:
    """A context in which torch gives and takes sharded state of ``model``."""
    with warnings.catch_warnings():
        # torch deprecates its own way to itself; there is nothing for a user to do about it.
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
        warnings.filterwarnings("ignore", message=".*_get_pg_default_device.*")
        warnings.filterwarnings("ignore", message="When using ``NO_SHARD``")
        with FullyShardedDataParallel.state_dict_type(
            model,
            StateDictType.SHARDED_STATE_DICT,
            ShardedStateDictConfig(offload_to_cpu=False),
            ShardedOptimStateDictConfig(offload_to_cpu=False),
        ):
            yield


class Fsdp1StateAdapter(ShardedStateAdapter):
    """Reads copies of this rank's parts as DTensors, and writes them back through torch."""

    def tensors(self, model: torch.nn.Module) -> dict[str, Any]:
        with _sharded(model):
            return {strip_markers(name): value for name, value in model.state_dict().items()}

    def aliases(self, model: torch.nn.Module) -> dict[str, str]:
        inner = getattr(model, "module", model)
        return keep_one(shared_by_name(model), getattr(inner, "_tied_weights_keys", None) or ()) or shared_names(model)

    def assign(self, model: torch.nn.Module, values: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        aliases = self.aliases(model)
        for name, value in values.items():
            copy_into(expected[aliases.get(name, name)], value)
        with _sharded(model):
            raw = {strip_markers(name): name for name in model.state_dict()}
            whole = {raw[name]: expected[aliases.get(name, name)] for name in expected}
            model.load_state_dict(whole, strict=False)

    def layout(
        self, optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module | None]
    ) -> dict[str, torch.Tensor]:
        model = _only_model(optimizer, models)
        stepped = {name for group in _names(optimizer, model) for name in group}
        return {name: value for name, value in self.tensors(model).items() if name in stepped}

    def optimizer_names(
        self, optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module | None]
    ) -> list[list[str]]:
        return _names(optimizer, _only_model(optimizer, models))

    def optimizer_state(
        self, optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module | None]
    ) -> OptimizerState:
        model = _only_model(optimizer, models)
        names = _names(optimizer, model)
        if not optimizer.state:
            groups = [{**group, "params": own} for group, own in zip(optimizer.param_groups, names, strict=True)]
            return OptimizerState(state={}, param_groups=groups)
        with _sharded(model):
            found = FullyShardedDataParallel.optim_state_dict(model, optimizer)
        groups = [
            {**group, "params": [strip_markers(name) for name in group["params"]]} for group in found["param_groups"]
        ]
        return OptimizerState(
            state={strip_markers(name): dict(entry) for name, entry in found["state"].items()}, param_groups=groups
        )

    def load_optimizer_state(
        self,
        optimizer: torch.optim.Optimizer,
        models: Sequence[torch.nn.Module | None],
        state: OptimizerState,
        *,
        strict: bool = True,
    ) -> LoadReport:
        model = _only_model(optimizer, models)
        names = _names(optimizer, model)
        layout = self.layout(optimizer, models)
        report = _compare(optimizer, names, layout, state)
        if strict and (report.missing or report.unexpected):
            raise CheckpointMismatchError(
                f"The checkpoint does not fit optimizer {type(optimizer).__name__}; nothing was changed.\n"
                f"  expected and not found: {', '.join(report.missing[:20]) or 'nothing'}\n"
                f"  found and not expected: {', '.join(report.unexpected[:20]) or 'nothing'}\n"
                "Create it with the same parameter groups, or pass strict=False to restore what fits."
            )
        keep = set(report.restored)
        with _sharded(model):
            raw = {strip_markers(name): name for name in model.state_dict()}
            values = {
                raw[name]: {key: fitted(value, layout[name]) for key, value in entry.items()}
                for name, entry in state.state.items()
                if name in keep
            }
            owner = {name: group for group in state.param_groups for name in group["params"]}
            groups = []
            for group, own in zip(optimizer.param_groups, names, strict=True):
                saved = owner.get(own[0], {}) if own else {}
                groups.append({**group, **saved, "params": [raw[name] for name in own]})
            loadable = FullyShardedDataParallel.optim_state_dict_to_load(
                model, optimizer, {"state": values, "param_groups": groups}
            )
        optimizer.load_state_dict(loadable)
        return report


def _only_model(optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module | None]) -> torch.nn.Module:
    """The one model whose parameters the optimizer steps.

    Raises:
        CheckpointError: there are several, or none.
    """
    mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
    owners = [m for m in models if m is not None and any(id(p) in mine for p in _all_parameters(m))]
    if len(owners) != 1:
        raise CheckpointError(
            f"The state of {type(optimizer).__name__} was asked for, which steps parameters of {len(owners)} prepared "
            "models; FSDP version 1 can save an optimizer of one model only. Use one optimizer for each model, or "
            "fsdp_version=2."
        )
    owner = owners[0]
    return getattr(owner, "_orig_mod", owner)


def _all_parameters(model: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    yield from model.parameters()
    for _, handle in handles(model):
        yield handle.flat_param


def _names(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> list[list[str]]:
    """Canonical names of what every group steps, a flat parameter standing for all that is in it."""
    contents = holders(model)
    own, _ = parameter_names(optimizer, [model])
    return [
        [
            name
            for parameter, single in zip(group["params"], singles, strict=True)
            for name in contents.get(id(parameter), [single])
        ]
        for group, singles in zip(optimizer.param_groups, own, strict=True)
    ]


def _compare(
    optimizer: torch.optim.Optimizer,
    names: Sequence[Sequence[str]],
    layout: Mapping[str, torch.Tensor],
    state: OptimizerState,
) -> LoadReport:
    """What would be restored: parameters that are known here, of the same shape, in a group of the same members."""
    what = f"optimizer {type(optimizer).__name__}"
    saved = {name: frozenset(group["params"]) for group in state.param_groups for name in group["params"]}
    restored: list[str] = []
    missing: list[str] = []
    for group in names:
        for name in group:
            same = saved.get(name) == frozenset(group)
            (restored if same and name in layout else missing).append(name)
    lost = [f"{what}: {name}" for name in missing]
    expected = {name for group in names for name in group}
    unexpected = [f"{what}: {name}" for name in saved if name not in expected]
    if lost and not unexpected:
        unexpected = [f"{what}: group {i} of {len(g['params'])} parameters" for i, g in enumerate(state.param_groups)]
    return LoadReport(restored=tuple(restored), missing=tuple(lost), unexpected=tuple(unexpected))
