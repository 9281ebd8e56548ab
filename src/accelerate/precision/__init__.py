"""Numeric precisions: full, autocast, autocast with a gradient scaler, and those that an engine owns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate.errors import ConfigError
from accelerate.precision.base import Precision

if TYPE_CHECKING:
    import torch

__all__ = ["MODES", "Precision", "choose"]

MODES = ("no", "fp16", "bf16", "fp8")


def choose(mode: str, device: torch.device, settings: dict[str, Any]) -> Precision:
    """The Precision for ``mode`` on ``device``, for strategies that leave precision to this library.

    ``settings`` may hold "scaler" (GradScalerKwargs), "autocast" (AutocastKwargs) and "fp8" (a recipe handler).

    Raises:
        ConfigError: ``mode`` is not one of :data:`MODES`.
    """
    from accelerate.precision import autocast, full

    mode = str(mode).lower()
    if mode == "no":
        return full.FullPrecision(device)
    if mode == "bf16":
        return autocast.AutocastPrecision("bf16", device, settings)
    if mode == "fp16":
        return autocast.ScaledPrecision(device, settings)
    if mode == "fp8":
        return autocast.AutocastPrecision("fp8", device, settings)
    raise ConfigError(f"mixed_precision={mode!r} is not a precision. Choose one of {', '.join(MODES)}.")
