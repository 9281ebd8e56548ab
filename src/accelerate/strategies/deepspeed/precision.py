"""Precision that the engine owns: it keeps master weights, casts, and scales the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from accelerate.errors import ConfigError, NotBuiltError
from accelerate.precision.base import Precision

__all__ = ["EnginePrecision", "check_device", "compute_dtype"]

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def compute_dtype(config: Mapping[str, Any]) -> torch.dtype:
    """The dtype that an engine with this configuration keeps its parameters in."""
    for mode, dtype in _DTYPES.items():
        if (config.get(mode) or {}).get("enabled") is True:
            return dtype
    return torch.float32


def check_device(mode: str, device: torch.device) -> None:
    """Raises ConfigError where the engine cannot compute in ``mode`` on ``device``."""
    if mode == "fp16" and device.type == "cpu":
        raise ConfigError(
            f"fp16 was asked for with DeepSpeed on {device}: DeepSpeed has no float16 on the CPU. Use "
            "mixed_precision='bf16' (or bf16.enabled in DeepSpeed's configuration), or train on a GPU."
        )
    if mode == "fp8":
        raise NotBuiltError(
            "mixed_precision='fp8' was asked for with DeepSpeed, which is not built yet. Use 'bf16', or FSDP for fp8."
        )


class EnginePrecision(Precision):
    """Steps and backward go through the engine; what is left is the context of ``accelerator.autocast()``."""

    def __init__(self, mode: str, device: torch.device, settings: dict[str, Any]) -> None:
        check_device(mode, device)
        self.mode = mode  # type: ignore[misc]  # one class serves every mode
        self.device = device
        self.settings = settings

    def prepare_model(self, model: torch.nn.Module) -> torch.nn.Module:
        """For a model that is only evaluated, which no engine casts."""
        if self.mode not in _DTYPES:
            return model
        from accelerate.precision.autocast import AutocastPrecision

        return AutocastPrecision(self.mode, self.device, self.settings).prepare_model(model)

    def forward_context(self, handler: Any | None = None) -> AbstractContextManager[Any]:
        dtype = _DTYPES.get(self.mode)
        handler = handler if handler is not None else self.settings.get("autocast")
        if dtype is None or (handler is not None and not handler.enabled):
            return nullcontext()
        cached = True if handler is None else handler.cache_enabled
        return torch.autocast(self.device.type, dtype=dtype, cache_enabled=cached)

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
