"""The table of model transforms, by stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from accelerate.transforms.base import ModelTransform, PrepareContext, Stage

if TYPE_CHECKING:
    import torch

__all__ = ["ModelTransform", "PrepareContext", "Stage", "register", "transform"]

_table: dict[Stage, list[Callable[[torch.nn.Module, PrepareContext], torch.nn.Module]]] = {}


def register(stage: Stage, apply: Callable[[torch.nn.Module, PrepareContext], torch.nn.Module]) -> None:
    """Adds a transform to a stage, after those already there."""
    _load()
    _table[stage].append(apply)


def _load() -> None:
    if _table:
        return
    from accelerate.transforms import compile as compiling
    from accelerate.transforms import low_precision, place, precise

    _table.update({stage: [] for stage in Stage})
    _table[Stage.LOW_PRECISION].append(low_precision.apply)
    _table[Stage.PLACE].append(place.apply)
    _table[Stage.PRECISION].append(precise.apply)
    _table[Stage.COMPILE_REGIONS].append(compiling.apply_regions)
    _table[Stage.COMPILE].append(compiling.apply_whole)


def transform(stage: Stage, model: torch.nn.Module, ctx: PrepareContext) -> torch.nn.Module:
    """Runs the transforms of one stage on ``model``, in order of registration."""
    _load()
    for apply in _table[stage]:
        model = apply(model, ctx)
    return model
