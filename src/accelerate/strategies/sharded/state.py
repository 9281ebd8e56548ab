"""State of models that are divided over ranks: DTensors by canonical name."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor

from accelerate.checkpoint.adapter import LoadReport, ModelState, StateAdapter
from accelerate.checkpoint.naming import strip_markers
from accelerate.checkpoint.plain import check_tensors, raise_mismatch
from accelerate.strategies.sharded.layout import gather_whole, local_part

__all__ = ["ShardedStateAdapter", "copy_into", "fitted", "keep_one", "parameters_by_name", "shared_names"]


def shared_names(model: torch.nn.Module) -> dict[str, str]:
    """Name → the name kept, for every parameter or buffer that is the very object of another name.

    The first name is kept, unless the model itself (transformers) says that this one is to be left out.
    """
    groups: dict[int, list[str]] = {}
    for name, tensor in (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ):
        groups.setdefault(id(tensor), []).append(strip_markers(name))
    return keep_one(groups.values(), _tied_keys(model))


def keep_one(groups: Iterable[list[str]], unwanted: Iterable[str] = ()) -> dict[str, str]:
    """Name → the name kept of its group; one that matches an ``unwanted`` pattern only where there is no other."""
    patterns = [re.compile(key) for key in unwanted]
    aliases: dict[str, str] = {}
    for names in groups:
        kept = min(names, key=lambda name: (any(p.search(name) for p in patterns), names.index(name)))
        aliases.update((name, kept) for name in names if name != kept)
    return aliases


def _tied_keys(model: torch.nn.Module) -> Iterable[str]:
    inner = getattr(model, "module", model)
    return getattr(inner, "_tied_weights_keys", None) or ()


def copy_into(target: torch.Tensor, value: torch.Tensor) -> None:
    """Copies ``value``, whole or divided, into ``target`` in place. Collective where layouts differ."""
    with torch.no_grad():
        if not isinstance(target, DTensor):
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            target.copy_(whole)
            return
        if isinstance(value, DTensor):
            same = value.device_mesh == target.device_mesh and value.placements == target.placements
            part = value.to_local() if same else local_part(value.full_tensor(), target)
        else:
            part = local_part(value, target)
        target.to_local().copy_(part)


class ShardedStateAdapter(StateAdapter):
    """What the adapters of both versions share. Every method is collective."""

    sharded: ClassVar[bool] = True

    def __init__(self, *, whole: bool = False) -> None:
        self.whole = whole

    def bare(self, model: torch.nn.Module) -> torch.nn.Module:
        """The user's own module."""
        inner = getattr(model, "_orig_mod", model)
        return getattr(inner, "module", inner) if isinstance(inner, FullyShardedDataParallel) else inner

    @abstractmethod
    def tensors(self, model: torch.nn.Module) -> dict[str, Any]:
        """Everything in the model's state by canonical name, divided tensors as DTensors; shared ones under each name.

        The tensors are those of the model where ``in_place``, else copies.
        """

    @abstractmethod
    def assign(self, model: torch.nn.Module, values: Mapping[str, torch.Tensor], expected: Mapping[str, Any]) -> None:
        """Copies ``values``, whose names are all among ``expected``, into the model."""

    @abstractmethod
    def layout(
        self, optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module | None]
    ) -> dict[str, torch.Tensor]:
        """Canonical name → a tensor laid out like the parameter that the optimizer steps under it."""

    def aliases(self, model: torch.nn.Module) -> dict[str, str]:
        """Name → the name kept, for tensors that the model holds under several names."""
        return shared_names(model)

    def model_state(self, model: torch.nn.Module) -> ModelState:
        state, aliases = self.tensors(model), self.aliases(model)
        aliases = {name: kept for name, kept in aliases.items() if name in state and kept in state}
        extra = {name: value for name, value in state.items() if not isinstance(value, torch.Tensor)}
        return ModelState(
            tensors={n: v for n, v in state.items() if isinstance(v, torch.Tensor) and n not in aliases},
            aliases=aliases,
            metadata={"extra_state": extra} if extra else {},
        )

    def load_model_state(
        self, model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], *, strict: bool = True
    ) -> LoadReport:
        expected = {name: t for name, t in self.tensors(model).items() if isinstance(t, torch.Tensor)}
        found = {name: t for name, t in tensors.items() if isinstance(t, torch.Tensor)}
        what = f"model {type(getattr(model, 'module', model)).__name__}"
        report = check_tensors(expected, found, self.aliases(model), what)
        if strict:
            raise_mismatch(report, what)
        self.assign(model, {name: found[name] for name in report.restored}, expected)
        return report

    def full_state_dict(self, model: torch.nn.Module, *, cpu: bool = True) -> dict[str, torch.Tensor]:
        state, aliases = self.tensors(model), self.aliases(model)
        first = not dist.is_initialized() or dist.get_rank() == 0
        device = torch.device("cpu") if cpu else None
        whole: dict[str, torch.Tensor] = {}
        for name, value in state.items():
            if aliases.get(name) in state:
                continue
            if isinstance(value, DTensor):
                value = gather_whole(value, device)
            elif isinstance(value, torch.Tensor):
                value = value.detach().to(device or value.device)
            if first and value is not None:
                whole[name] = value
        if first:
            whole.update((name, whole[kept]) for name, kept in aliases.items() if name in state and kept in whole)
            whole = {name: whole[name] for name in state if name in whole}
        return whole


def parameters_by_name(optimizer: torch.optim.Optimizer, names: Sequence[Sequence[str]]) -> dict[str, torch.Tensor]:
    """Canonical name → the parameter that the optimizer steps under it."""
    return {
        name: parameter
        for group, own in zip(optimizer.param_groups, names, strict=True)
        for name, parameter in zip(own, group["params"], strict=True)
    }


def fitted(value: Any, parameter: torch.Tensor) -> Any:
    """A piece of optimizer state laid out like its parameter where it has the parameter's shape, and whole elsewhere.

    Collective where the value is divided in another way.
    """
    if not isinstance(value, torch.Tensor):
        return value
    if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
        return value.full_tensor() if isinstance(value, DTensor) else value
    if isinstance(value, DTensor):
        if value.device_mesh == parameter.device_mesh and value.placements == parameter.placements:
            return value
        value = value.full_tensor()
    local = local_part(value, parameter).to(parameter.to_local().device, copy=True).contiguous()
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
