"""No mixed precision: the model runs in the dtype of its own parameters."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from accelerate.precision.base import Precision

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FullPrecision"]


class FullPrecision(Precision):
    """Leaves everything as it is."""

    mode = "no"

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def prepare_model(self, model: torch.nn.Module) -> torch.nn.Module:
        return model

    def forward_context(self, handler: Any | None = None) -> AbstractContextManager[Any]:
        return nullcontext()

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        loss.backward(**kwargs)  # type: ignore[no-untyped-call]

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        return None

    def step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> bool:
        if closure is None:
            optimizer.step()
        else:
            optimizer.step(closure)
        return True
