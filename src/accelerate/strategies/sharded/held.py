"""Weights that only the first rank holds, taken out of the model until their unit is there to receive them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor

from accelerate.checkpoint.naming import strip_markers
from accelerate.strategies.sharded.agreement import broadcast
from accelerate.strategies.sharded.source import is_first

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Receiver", "let_go"]


def let_go(model: torch.nn.Module, mesh: DeviceMesh, keep: set[torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    """Puts every parameter but those in ``keep`` on the "meta" device, on all ranks, and returns what the first rank
    held, by canonical name (empty elsewhere). Shared parameters stay shared."""
    held: dict[str, torch.Tensor] = {}
    places: dict[torch.nn.Parameter, list[tuple[torch.nn.Module, str]]] = {}
    first = is_first(mesh)
    for name, parameter in model.named_parameters():
        if parameter not in keep and not isinstance(parameter, DTensor):
            places[parameter] = []
            if first:
                held[strip_markers(name)] = parameter.data
    for module in model.modules():
        for leaf, own in module._parameters.items():
            if own is not None and own in places:
                places[own].append((module, leaf))
    for parameter, where in places.items():
        empty = torch.nn.Parameter(parameter.data.to("meta"), requires_grad=parameter.requires_grad)
        for module, leaf in where:
            module._parameters[leaf] = empty
    return held


class Receiver:
    """Gives a module of a model that :func:`let_go` emptied its own parameters, from the first rank. Collective.

    For an engine that asks for one module after the other, in the same order on every rank.
    """

    def __init__(
        self, model: torch.nn.Module, mesh: DeviceMesh, held: Mapping[str, torch.Tensor], device: torch.device
    ) -> None:
        self.mesh = mesh
        self.held = held
        self.device = device
        self.names = {p: strip_markers(name) for name, p in model.named_parameters()}
        self.made: dict[torch.nn.Parameter, torch.nn.Parameter] = {}

    def __call__(self, module: torch.nn.Module) -> None:
        """Makes the data of ``module`` itself, not of its children; shared parameters stay shared."""
        for leaf, parameter in module._parameters.items():
            if parameter is None or not parameter.is_meta:
                continue
            if parameter not in self.made:
                data = torch.empty_like(parameter.data, device=self.device)
                whole = self.held.get(self.names[parameter])
                if whole is not None:
                    data.copy_(whole)
                broadcast(data, self.mesh)
                self.made[parameter] = torch.nn.Parameter(data, requires_grad=parameter.requires_grad)
            module._parameters[leaf] = self.made[parameter]
