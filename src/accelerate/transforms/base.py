"""Ordered stages that change a model before a strategy wraps it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from accelerate.runtime import Runtime

__all__ = ["ModelTransform", "PrepareContext", "Stage"]


class Stage(Enum):
    """Where in the order a transform belongs. A strategy lists the stages it runs, in order, as data."""

    TENSOR_PARALLEL = "tensor_parallel"
    CONTEXT_PARALLEL = "context_parallel"
    LOW_PRECISION = "low_precision"
    PLACE = "place"
    PRECISION = "precision"
    ACTIVATION_CHECKPOINTING = "activation_checkpointing"
    COMPILE_REGIONS = "compile_regions"
    WRAP = "wrap"
    COMPILE = "compile"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareContext:
    """What a transform or a strategy may know while one model is prepared.

    ``place`` is the user's ``device_placement`` for this model; ``train`` is False for ``evaluation_mode=True``;
    ``settings`` maps a subject ("ddp", "dynamo", "autocast", "fp8", …) to its handler object or None, read late.
    """

    runtime: Runtime
    place: bool = True
    train: bool = True
    settings: dict[str, Any] = field(default_factory=dict)


class ModelTransform(Protocol):
    """One change of a model, made at one stage."""

    stage: Stage

    def apply(self, model: torch.nn.Module, ctx: PrepareContext) -> torch.nn.Module:
        """Returns the changed model; the argument may be changed in place."""
        ...
