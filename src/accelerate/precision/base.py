"""The seam for a numeric precision: what is done to the model, the forward, the backward and the step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

__all__ = ["Precision"]


class Precision(ABC):
    """One precision of one strategy. Holds the gradient scaler where there is one.

    Calls, in order: ``prepare_model`` once a model; then per step ``forward_context`` around user code that asks for
    it, ``backward``, ``unscale`` before gradients are looked at, ``step``.
    """

    mode: ClassVar[str]

    @property
    def scaler(self) -> Any | None:
        """The ``torch.amp.GradScaler``-like object in use, or None."""
        return None

    @abstractmethod
    def prepare_model(self, model: torch.nn.Module) -> torch.nn.Module:
        """Makes the model's forward run in this precision; returns the same object where it can."""

    @abstractmethod
    def forward_context(self, handler: Any | None = None) -> AbstractContextManager[Any]:
        """The context of ``accelerator.autocast()``; ``handler`` is an ``AutocastKwargs``."""

    @abstractmethod
    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Runs ``loss.backward(**kwargs)``, scaled where the precision scales."""

    @abstractmethod
    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Brings the optimizer's gradients to their true scale, once a step; idempotent within the step."""

    @abstractmethod
    def step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> bool:
        """Steps the bare optimizer. Returns False where the step was skipped for non-finite gradients."""
