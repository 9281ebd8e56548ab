"""Makes the forward run in the job's mixed precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from accelerate.transforms.base import PrepareContext

__all__ = ["apply"]


def apply(model: torch.nn.Module, ctx: PrepareContext) -> torch.nn.Module:
    """Hands the model to the Precision in use."""
    precision = ctx.runtime.precision
    return model if precision is None else precision.prepare_model(model)
