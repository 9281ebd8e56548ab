"""Divided models and optimizers in folders of ``torch.distributed.checkpoint``, in files, and back.

Layout of a folder, which other libraries share: ``model.<name>`` for tensors; ``optimizer.state.<name>.<key>`` and
``optimizer.param_groups.<i>.<key>`` for optimizers. ``aliases.<name>`` says which name a shared tensor is kept under.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from accelerate.checkpoint import dcp
from accelerate.checkpoint.adapter import LoadReport, ModelState, OptimizerState
from accelerate.checkpoint.plain import check_tensors, raise_mismatch
from accelerate.comm.base import Collectives
from accelerate.errors import CheckpointMismatchError
from accelerate.strategies.sharded.layout import gather_whole
from accelerate.strategies.sharded.state import ShardedStateAdapter

__all__ = [
    "MODEL",
    "OPTIMIZER",
    "gathered_optimizer",
    "load_model_folder",
    "load_optimizer_folder",
    "model_table",
    "optimizer_from",
    "optimizer_table",
    "read_model",
    "read_optimizer",
    "save_model_folder",
    "save_optimizer_folder",
]

MODEL, OPTIMIZER, ALIASES = "model", "optimizer", "aliases"


def model_table(state: ModelState) -> dict[str, Any]:
    """A model's state as a folder holds it."""
    table: dict[str, Any] = {MODEL: dict(state.tensors)}
    if state.aliases:
        table[ALIASES] = dict(state.aliases)
    return table


def optimizer_table(state: OptimizerState) -> dict[str, Any]:
    """An optimizer's state as a folder holds it."""
    return {OPTIMIZER: {**state.extra, "state": state.state, "param_groups": state.param_groups}}


def optimizer_from(found: Mapping[str, Any]) -> OptimizerState:
    """The state in what a folder or file holds: groups that name their parameters, state by those names."""
    table = found.get(OPTIMIZER, found)
    groups = table.get("param_groups")
    if not isinstance(groups, list) or not all(isinstance(g.get("params"), (list, tuple)) for g in groups):
        raise CheckpointMismatchError(
            f"What was found is no optimizer state: it has {', '.join(sorted(map(str, table))) or 'nothing'} and no "
            "parameter groups. Load what save_fsdp_optimizer or save_state wrote."
        )
    named = [{**group, "params": list(group["params"])} for group in groups]
    rest = {key: value for key, value in table.items() if key not in ("state", "param_groups")}
    return OptimizerState(state=dict(table.get("state") or {}), param_groups=named, extra=rest)


def save_model_folder(state: ModelState, folder: Path, collectives: Collectives) -> None:
    """Collective. Writes a model's state to a new folder."""
    dcp.write(folder, model_table(state), collectives)


def save_optimizer_folder(state: OptimizerState, folder: Path, collectives: Collectives) -> None:
    """Collective. Writes an optimizer's state to a new folder."""
    dcp.write(folder, optimizer_table(state), collectives)


def load_model_folder(
    adapter: ShardedStateAdapter,
    model: torch.nn.Module,
    folder: Path,
    *,
    strict: bool = True,
) -> LoadReport:
    """Collective. Reads a folder into a divided model, each rank its own parts.

    Raises:
        CheckpointMismatchError: ``strict``, and names or shapes differ; nothing was changed.
    """
    own = {name: t for name, t in adapter.tensors(model).items() if isinstance(t, torch.Tensor)}
    meta = {name: torch.empty(shape, device="meta") for name, shape in dcp.shapes(folder, MODEL).items()}
    what = f"model {type(getattr(model, 'module', model)).__name__}"
    report = check_tensors(own, meta, adapter.aliases(model), what)
    if strict:
        raise_mismatch(report, what)
    keep = set(report.restored)

    def template(path: tuple[str | int, ...], entry: Any) -> torch.Tensor | None:
        name = ".".join(map(str, path[1:]))
        return own[name] if path[0] == MODEL and name in keep else None

    found = dcp.read(folder, template)
    adapter.load_model_state(model, _flat(found.get(MODEL, {})), strict=False)
    return report


def read_model(
    adapter: ShardedStateAdapter, model: torch.nn.Module, folder: Path, names: Mapping[str, str]
) -> dict[str, torch.Tensor]:
    """This rank's parts of those tensors in a folder whose names ``names`` maps to the model's; nothing is changed."""
    own = adapter.tensors(model)

    def template(path: tuple[str | int, ...], entry: Any) -> torch.Tensor | None:
        target = own.get(names.get(".".join(map(str, path[1:])), "")) if path[0] == MODEL else None
        if not isinstance(target, torch.Tensor) or tuple(target.shape) != tuple(entry.size):
            return None
        return torch.empty_like(target)

    return _flat(dcp.read(folder, template).get(MODEL, {}))


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, torch.Tensor]:
    """Tensors by dotted name, also where a name's dots had become levels."""
    flat: dict[str, torch.Tensor] = {}
    for key, value in nested.items():
        if isinstance(value, torch.Tensor):
            flat[f"{prefix}{key}"] = value
        elif isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{key}."))
    return flat


def load_optimizer_folder(
    adapter: ShardedStateAdapter,
    optimizer: torch.optim.Optimizer,
    models: Sequence[torch.nn.Module | None],
    folder: Path,
    *,
    strict: bool = True,
) -> LoadReport:
    """Collective. Reads a folder into the optimizer of divided models, each rank its own parts."""
    state = read_optimizer(adapter, optimizer, models, folder)
    return adapter.load_optimizer_state(optimizer, models, state, strict=strict)


def read_optimizer(
    adapter: ShardedStateAdapter,
    optimizer: torch.optim.Optimizer,
    models: Sequence[torch.nn.Module | None],
    folder: Path,
) -> OptimizerState:
    """This rank's parts of the optimizer state in a folder; nothing is changed."""
    layout = adapter.layout(optimizer, models)

    def template(path: tuple[str | int, ...], entry: Any) -> torch.Tensor:
        name = path[2] if len(path) == 4 and path[:2] == (OPTIMIZER, "state") else None
        parameter = layout.get(str(name)) if name is not None else None
        if isinstance(parameter, DTensor) and tuple(entry.size) == tuple(parameter.shape):
            local = torch.empty_like(parameter.to_local(), dtype=entry.properties.dtype)
            return DTensor.from_local(
                local,
                parameter.device_mesh,
                parameter.placements,
                run_check=False,
                shape=parameter.shape,
                stride=parameter.stride(),
            )
        return torch.empty(entry.size, dtype=entry.properties.dtype)

    return optimizer_from(dcp.read(folder, template))


def gathered_optimizer(state: OptimizerState) -> OptimizerState | None:
    """Collective. The state with whole tensors in host memory, on the first rank; None elsewhere.

    Parts are sent to the first rank one tensor after the other, and to no other rank.
    """
    first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    host = torch.device("cpu")
    whole: dict[str, dict[str, Any]] = {}
    for name, entry in state.state.items():
        made: dict[str, Any] = {}
        for key, value in entry.items():
            if isinstance(value, DTensor):
                gathered = gather_whole(value, host)
            else:
                gathered = value.detach().to(host) if isinstance(value, torch.Tensor) else value
            if first:
                made[key] = gathered
        whole[name] = made
    if not first:
        return None
    return OptimizerState(state=whole, param_groups=state.param_groups, named=state.named, extra=state.extra)
