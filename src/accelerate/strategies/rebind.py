"""The one remap of optimizer parameters: from the parameters a model had to those it has after wrapping, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from accelerate.checkpoint.naming import canonical_parameters
from accelerate.errors import PrepareError

__all__ = ["Rebinding"]

Convert = Callable[[torch.Tensor, torch.Tensor, dict[str, Any]], dict[str, Any]]


class Rebinding:
    """Remembers which named parameter of which model every optimizer steps, to point it at the new parameters.

    Take it before the models are wrapped; call :meth:`apply` with the wrapped models in the same order.
    """

    def __init__(self, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = [_bare(optimizer) for optimizer in optimizers]
        owners: dict[int, tuple[int, str]] = {}
        for index, model in enumerate(models):
            for name, parameter in canonical_parameters(model):
                owners.setdefault(id(parameter), (index, name))
        self._keys = [
            [[owners.get(id(p)) for p in group["params"]] for group in optimizer.param_groups]
            for optimizer in self._optimizers
        ]

    def apply(self, models: Sequence[torch.nn.Module], convert: Convert | None = None) -> None:
        """Puts the new parameters into the optimizers' groups in place, and moves their state along.

        ``convert(old, new, state)`` makes one parameter's state fit the new parameter (a shard, say).

        Raises:
            PrepareError: a parameter an optimizer steps has no successor of the same name.
        """
        successors = {
            (index, name): parameter
            for index, model in enumerate(models)
            for name, parameter in canonical_parameters(model)
        }
        for optimizer, keys in zip(self._optimizers, self._keys, strict=True):
            for group, names in zip(optimizer.param_groups, keys, strict=True):
                old = group["params"]
                group["params"] = [
                    _successor(successors, key, parameter) for key, parameter in zip(names, old, strict=True)
                ]
                for before, after in zip(old, group["params"], strict=True):
                    if before is not after and before in optimizer.state:
                        state = optimizer.state.pop(before)
                        optimizer.state[after] = convert(before, after, state) if convert else state


def _bare(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, torch.optim.Optimizer) else optimizer


def _successor(
    successors: dict[tuple[int, str], torch.nn.Parameter], key: tuple[int, str] | None, parameter: torch.Tensor
) -> torch.Tensor:
    if key is None:
        return parameter
    if key not in successors:
        raise PrepareError(
            f"The optimizer steps parameter {key[1]!r}, which the wrapped model no longer has under that name, so it "
            "would train nothing. Create the optimizer after prepare(model), or let the strategy keep the original "
            "parameters (FSDP version 1: use_orig_params=True)."
        )
    return successors[key]
