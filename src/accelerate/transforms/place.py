"""Puts a model on the rank's device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from accelerate.errors import PrepareError

if TYPE_CHECKING:
    from accelerate.transforms.base import PrepareContext

__all__ = ["apply", "check_device_map"]


def check_device_map(model: torch.nn.Module, ctx: PrepareContext) -> None:
    """Raises PrepareError where the model is spread over devices or offloaded and would now be trained by ranks."""
    spread = getattr(model, "hf_device_map", None)
    if not spread or not ctx.train:
        return
    places = {str(place) for place in spread.values()}
    if ctx.runtime.topology.world_size > 1 and len(places) > 1:
        raise PrepareError(
            f"prepare() got a model whose layers are spread over {sorted(places)} by a device map, in a job of "
            f"{ctx.runtime.topology.world_size} processes. Each process needs the whole model on its own device: load "
            "it without `device_map='auto'`, or start one process."
        )
    if places & {"cpu", "disk"} and len(places) > 1:
        raise PrepareError(
            f"prepare() got a model that is partly offloaded ({sorted(places)}): offloaded weights cannot be trained. "
            "Load it without offloading, or use evaluation_mode=True."
        )


def apply(model: torch.nn.Module, ctx: PrepareContext) -> torch.nn.Module:
    """Moves the model in place unless the user keeps placement, a device map owns it, or parameters are on "meta"."""
    check_device_map(model, ctx)
    if not ctx.place or getattr(model, "hf_device_map", None):
        return model
    device = ctx.runtime.device
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if not devices or devices == {device}:
        return model
    if torch.device("meta") in devices:
        names = [name for name, p in model.named_parameters() if p.is_meta]
        raise PrepareError(
            f"prepare() got a model without weights: {names[:3]} and {max(len(names) - 3, 0)} more parameters are on "
            "the 'meta' device. Load the weights first, or use FSDP version 2 with cpu_ram_efficient_loading."
        )
    return model.to(device)
