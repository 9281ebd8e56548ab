"""Which parameter took the place of which: lets an optimizer built at any time step what the model now has."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.weak import WeakIdKeyDictionary

from accelerate.checkpoint.naming import canonical_parameters, parameter_names
from accelerate.checkpoint.optimizer_state import from_torch_layout
from accelerate.strategies.sharded.layout import local_part

if TYPE_CHECKING:
    from accelerate.checkpoint.adapter import OptimizerState

__all__ = ["Snapshot", "Successors", "bare_optimizer", "no_mixed_kernels", "shard_state", "take_state"]

Snapshot = list[tuple[str, "weakref.ref[torch.nn.Parameter]"]]
Convert = Callable[[torch.Tensor, torch.Tensor, dict[str, Any]], dict[str, Any]]


class Successors:
    """Old parameter → the parameter that replaced it, for as long as somebody holds the old one.

    Nothing here keeps a tensor alive: an optimizer that was built on the whole model is what holds it.
    """

    def __init__(self) -> None:
        self._new: Any = WeakIdKeyDictionary()

    @staticmethod
    def watch(model: torch.nn.Module) -> Snapshot:
        """The parameters before wrapping, by canonical name. Tensor subclasses that torch swaps in place are left out:
        they stay the same objects."""
        return [
            (name, weakref.ref(parameter))
            for name, parameter in canonical_parameters(model)
            if isinstance(parameter, DTensor) or not is_traceable_wrapper_subclass(parameter)
        ]

    def record(self, before: Snapshot, after: dict[str, torch.nn.Parameter]) -> None:
        """Notes what became of the parameters of a snapshot; ``after`` is by canonical name."""
        for name, reference in before:
            old, new = reference(), after.get(name)
            if old is not None and new is not None and old is not new:
                self._new[old] = weakref.ref(new)

    def find(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """The parameter in use now where ``parameter`` was replaced, else None."""
        reference = self._new.get(parameter)
        return reference() if reference is not None else None

    def rebind(self, optimizer: torch.optim.Optimizer, convert: Convert) -> int:
        """Puts successors into the groups of a bare optimizer, in place, with the state moved along; how many."""
        replaced = 0
        for group in optimizer.param_groups:
            fresh: list[torch.Tensor] = []
            for old in group["params"]:
                new = self.find(old)
                if new is None:
                    fresh.append(old)
                    continue
                replaced += 1
                if not any(new is other for other in fresh):
                    fresh.append(new)
                if old in optimizer.state:
                    state = convert(old, new, optimizer.state.pop(old))
                    if state:
                        optimizer.state[new] = state
            group["params"] = fresh
        return replaced


def shard_state(old: torch.Tensor, new: torch.Tensor, state: dict[str, Any]) -> dict[str, Any]:
    """One parameter's optimizer state cut to this rank's part: what has the parameter's shape is divided like it."""
    if not isinstance(new, DTensor):
        return state
    return {
        key: _part(value, old, new) if isinstance(value, torch.Tensor) and value.shape == new.shape else value
        for key, value in state.items()
    }


def _part(value: torch.Tensor, old: torch.Tensor, new: DTensor) -> torch.Tensor:
    if value.is_floating_point() and value.dtype == old.dtype:
        value = value.to(new.dtype)
    local = local_part(value.detach(), new).to(new.to_local().device, copy=True)
    return DTensor.from_local(
        local, new.device_mesh, new.placements, run_check=False, shape=new.shape, stride=new.stride()
    )


def no_mixed_kernels(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Turns off the many-tensor kernels of groups that hold divided and whole parameters: they take one kind only."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if len({isinstance(p, DTensor) for p in group["params"]}) > 1:
                for kernel in ("foreach", "fused"):
                    if kernel in group:
                        group[kernel] = False


def bare_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer inside a prepared one; the same object where it is bare."""
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, torch.optim.Optimizer) else optimizer


def take_state(
    optimizers: Sequence[torch.optim.Optimizer], models: Sequence[torch.nn.Module]
) -> list[tuple[torch.optim.Optimizer, OptimizerState]]:
    """The state of those optimizers that have stepped parameters of ``models``, by name, taken out of them: it is that
    of whole parameters, which are about to be divided."""
    mine = {id(parameter) for model in models for parameter in model.parameters()}
    taken = []
    for optimizer in optimizers:
        if any(id(parameter) in mine for parameter in optimizer.state):
            names, named = parameter_names(optimizer, models)
            taken.append((optimizer, from_torch_layout(optimizer.state_dict(), names, named)))
            optimizer.state.clear()
    return taken
