"""Layers stored in a small dtype and computed in a larger one."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from accelerate.offload.hooks import ModelHook, add_hook_to_module

__all__ = ["LAYERS", "LayerwiseCastingHook", "attach_layerwise_casting_hooks"]

# Layers whose weights outweigh their cost of casting and whose maths survives a rounded weight; norms do not.
LAYERS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.Linear,
)


class LayerwiseCastingHook(ModelHook):
    """Stores a layer in ``storage_dtype`` and casts it to ``compute_dtype`` for the time of a call."""

    def __init__(self, storage_dtype: torch.dtype, compute_dtype: torch.dtype, non_blocking: bool) -> None:
        self.storage_dtype = storage_dtype
        self.compute_dtype = compute_dtype
        self.non_blocking = non_blocking

    def init_hook(self, module: nn.Module) -> nn.Module:
        return module.to(dtype=self.storage_dtype, non_blocking=self.non_blocking)

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        module.to(dtype=self.compute_dtype, non_blocking=self.non_blocking)
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        module.to(dtype=self.storage_dtype, non_blocking=self.non_blocking)
        return output


def attach_layerwise_casting_hooks(
    module: nn.Module,
    storage_dtype: torch.dtype,
    compute_dtype: torch.dtype,
    skip_modules_pattern: str | tuple[str, ...] | None = None,
    skip_modules_classes: tuple[type[nn.Module], ...] | None = None,
    non_blocking: bool = False,
) -> None:
    """Stores every linear and convolutional layer below in ``storage_dtype`` and computes it in ``compute_dtype``.

    Left alone, with all below them: modules whose full name a pattern of ``skip_modules_pattern`` matches somewhere,
    and those of ``skip_modules_classes``. Meant for inference: rounding to the storage dtype is not undone.
    """
    patterns = (skip_modules_pattern,) if isinstance(skip_modules_pattern, str) else skip_modules_pattern or ()
    _attach(module, "", storage_dtype, compute_dtype, patterns, skip_modules_classes or (), non_blocking)


def _attach(
    module: nn.Module,
    name: str,
    storage: torch.dtype,
    compute: torch.dtype,
    patterns: tuple[str, ...],
    classes: tuple[type[nn.Module], ...],
    non_blocking: bool,
) -> None:
    if isinstance(module, classes) or any(re.search(pattern, name) for pattern in patterns):
        return
    if isinstance(module, LAYERS):
        add_hook_to_module(module, LayerwiseCastingHook(storage, compute, non_blocking), append=True)
        return
    for child_name, child in module.named_children():
        full = f"{name}.{child_name}" if name else child_name
        _attach(child, full, storage, compute, patterns, classes, non_blocking)
