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
from accelerate.checkpoint.divided import read_model, read_optimizer
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
    adapter: ShardedStateAdapter, model: torch.nn.Module, folder: Path, *, strict: bool = True
) -> LoadReport:
    """Collective. Reads a folder into a divided model, each rank its own parts.

    Raises:
        CheckpointMismatchError: ``strict``, and names or shapes differ; nothing was changed.
    """
    own = {name: t for name, t in adapter.tensors(model).items() if isinstance(t, torch.Tensor)}
    meta = {name: torch.empty(shape, device="meta") for name, shape in dcp.shapes(folder, MODEL).items()}
    what = f"model {type(adapter.bare(model)).__name__}"
    report = check_tensors(own, meta, adapter.aliases(model), what)
    if strict:
        raise_mismatch(report, what)
    adapter.load_model_state(model, read_model(folder, own), strict=False)
    return report


def load_optimizer_folder(
    adapter: ShardedStateAdapter,
    optimizer: torch.optim.Optimizer,
    models: Sequence[torch.nn.Module | None],
    folder: Path,
    *,
    strict: bool = True,
) -> LoadReport:
    """Collective. Reads a folder into the optimizer of divided models, each rank its own parts."""
    state = read_optimizer(folder, adapter.layout(optimizer, models))
    return adapter.load_optimizer_state(optimizer, models, state, strict=strict)


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
