"""Swaps layers for 8-bit floating point ones where mixed precision is "fp8"."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from accelerate.transforms.base import PrepareContext

__all__ = ["apply"]


def apply(model: torch.nn.Module, ctx: PrepareContext) -> torch.nn.Module:
    """Converts linear layers by the fp8 back end in use; leaves the model alone in every other precision."""
    if getattr(ctx.runtime.precision, "mode", "no") != "fp8":
        return model
    from accelerate.precision.fp8 import convert

    return convert(model, ctx.settings.get("fp8"), device=ctx.runtime.device)
