"""An optimizer's state between torch's layout (by index) and ours (by canonical name)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from accelerate.checkpoint.adapter import LoadReport, OptimizerState
from accelerate.checkpoint.room import copied
from accelerate.errors import CheckpointMismatchError

__all__ = ["check", "from_torch_layout", "restore", "to_torch_layout"]

# State that has the parameter's own shape in every optimizer of torch.
_PARAMETER_SHAPED = frozenset(
    {
        "exp_avg",
        "exp_avg_sq",
        "max_exp_avg_sq",
        "exp_inf",
        "momentum_buffer",
        "square_avg",
        "grad_avg",
        "acc_delta",
        "sum",
    }
)


def from_torch_layout(state_dict: Mapping[str, Any], names: Sequence[Sequence[str]], named: bool) -> OptimizerState:
    """The state by name; ``names`` are those of the parameters of every group, in the order of the groups.

    Tensors are the very ones of ``state_dict``. A dictionary that is not laid out as torch's is kept whole in
    ``extra["raw"]``.
    """
    groups = state_dict.get("param_groups")
    if not isinstance(groups, list) or not isinstance(state_dict.get("state"), Mapping):
        return OptimizerState(state={}, param_groups=[], named=named, extra={"raw": dict(state_dict)})
    by_index = {
        index: name
        for group, group_names in zip(groups, names, strict=True)
        for index, name in zip(group["params"], group_names, strict=True)
    }
    extra = {key: value for key, value in state_dict.items() if key not in ("state", "param_groups")}
    loose = {key: value for key, value in state_dict["state"].items() if key not in by_index}
    if loose:
        extra["state"] = loose
    return OptimizerState(
        state={by_index[i]: value for i, value in state_dict["state"].items() if i in by_index},
        param_groups=[{**group, "params": list(own)} for group, own in zip(groups, names, strict=True)],
        named=named,
        extra=extra,
    )


def to_torch_layout(state: OptimizerState) -> dict[str, Any]:
    """What ``torch.optim.Optimizer.load_state_dict`` takes, parameters numbered in the order of the groups."""
    if "raw" in state.extra:
        return dict(state.extra["raw"])
    order = {name: index for index, name in enumerate(n for group in state.param_groups for n in group["params"])}
    packed: dict[Any, Any] = {order[name]: value for name, value in state.state.items() if name in order}
    packed.update(state.extra.get("state", {}))
    groups = [{**group, "params": [order[name] for name in group["params"]]} for group in state.param_groups]
    rest = {key: value for key, value in state.extra.items() if key != "state"}
    return {"state": packed, "param_groups": groups, **rest}


def check(
    what: str, names: Sequence[Sequence[str]], layout: Mapping[str, torch.Tensor], state: OptimizerState
) -> tuple[LoadReport, list[int | None]]:
    """What would be restored, and for every group the saved group it takes its settings from.

    A saved group belongs to the one that holds its parameters; where groups were parted differently there is none,
    and the parameters count as missing. ``what`` names the optimizer in messages, ``names`` are the parameters of every
    group, ``layout`` has the parameters by name.
    """
    if "raw" in state.extra:
        return LoadReport(restored=("raw",)), [None] * len(names)
    saved = [list(group["params"]) for group in state.param_groups]
    owner = {name: index for index, group in enumerate(saved) for name in group}
    sources: list[int | None] = []
    missing, restored = [], []
    for index, group in enumerate(names):
        homes = {owner.get(name) for name in group}
        source = homes.pop() if len(homes) == 1 else None
        if not group:
            source = index if index < len(saved) and not saved[index] else None
        elif source is not None and set(saved[source]) != set(group):
            source = None
        sources.append(source)
        for name in group:
            reason = _misfit(state.state.get(name, {}), layout[name]) if name in owner and name in layout else ""
            if name not in owner or source is None or reason:
                missing.append(f"{what}: {name} (group {index}){reason}")
            else:
                restored.append(name)
    expected = {name for group in names for name in group}
    unexpected = [f"{what}: {name} (group {owner[name]})" for name in owner if name not in expected]
    if missing and not unexpected:
        # The same names in other groups: show how they were parted, or neither side would tell anything.
        unexpected = [f"{what}: group {i} of {len(group)} parameters" for i, group in enumerate(saved)]
    return LoadReport(restored=tuple(restored), missing=tuple(missing), unexpected=tuple(unexpected)), sources


def _misfit(values: Mapping[str, Any], parameter: torch.Tensor) -> str:
    for key, value in values.items():
        if key in _PARAMETER_SHAPED and isinstance(value, torch.Tensor) and value.shape != parameter.shape:
            return f": {key} has shape {tuple(value.shape)}, the parameter {tuple(parameter.shape)}"
    return ""


def restore(
    optimizer: torch.optim.Optimizer, names: Sequence[Sequence[str]], state: OptimizerState, *, strict: bool = True
) -> LoadReport:
    """Loads a state by name into a bare optimizer. Tensors are copied: those given may be views of a file.

    Raises:
        CheckpointMismatchError: ``strict``, and parameters or groups differ; nothing was changed.
    """
    if "raw" in state.extra:
        optimizer.load_state_dict(_own(dict(state.extra["raw"]), {}))
        return LoadReport(restored=("raw",))
    what = f"optimizer {type(optimizer).__name__}"
    layout = {
        name: parameter
        for group, own in zip(optimizer.param_groups, names, strict=True)
        for name, parameter in zip(own, group["params"], strict=True)
    }
    report, sources = check(what, names, layout, state)
    if strict and (report.missing or report.unexpected):
        raise CheckpointMismatchError(
            f"The checkpoint does not fit {what}; nothing was changed.\n"
            f"  expected and not found: {', '.join(report.missing[:20]) or 'nothing'}\n"
            f"  found and not expected: {', '.join(report.unexpected[:20]) or 'nothing'}\n"
            "Create it with the same parameter groups, or pass strict=False to restore what fits."
        )
    current = optimizer.state_dict()
    keep = set(report.restored)
    groups, packed = [], {}
    for now, group, source in zip(current["param_groups"], names, sources, strict=True):
        settings = now if source is None else {**now, **state.param_groups[source]}
        groups.append({**settings, "params": now["params"]})
        for index, name in zip(now["params"], group, strict=True):
            if name in keep and name in state.state:
                packed[index] = state.state[name]
    packed.update(state.extra.get("state", {}))
    rest = {key: value for key, value in state.extra.items() if key != "state"}
    owned = _own(packed, current["state"])
    optimizer.load_state_dict({**current, **rest, "state": owned, "param_groups": groups})
    return report


def _own(values: dict[Any, Any], there: Mapping[Any, Any]) -> dict[Any, Any]:
    """``values`` in memory of the optimizer's own; torch's load_state_dict would keep the tensors it is given.

    Where ``there`` has a tensor of the same kind at the same place, it is written over.
    """
    with ThreadPoolExecutor(2, thread_name_prefix="accelerate-load") as pool:

        def owned(value: Any, old: Any) -> Any:
            if isinstance(value, torch.Tensor):
                large = type(value) is torch.Tensor and value.numel() > 1 << 16
                return pool.submit(_placed, value, old) if large else _placed(value, old)
            if isinstance(value, dict):
                known = old if isinstance(old, Mapping) else {}
                return {key: owned(item, known.get(key)) for key, item in value.items()}
            return type(value)(owned(item, None) for item in value) if type(value) in (list, tuple) else value

        def landed(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: landed(item) for key, item in value.items()}
            if type(value) in (list, tuple):
                return type(value)(map(landed, value))
            return value.result() if isinstance(value, Future) else value

        made: dict[Any, Any] = landed(owned(values, there))
        return made


def _placed(value: torch.Tensor, old: Any) -> torch.Tensor:
    with torch.no_grad():  # which is a thread's own affair
        return old.copy_(value) if _alike(value, old) else copied(value)


def _alike(value: torch.Tensor, old: Any) -> bool:
    """Whether ``old`` may be written over with ``value``."""
    return (
        type(value) is type(old) is torch.Tensor
        and value.shape == old.shape
        and value.dtype == old.dtype
        and old.is_contiguous()
        and not old.requires_grad
    )
