"""Mixed precision by ``torch.autocast``, with and without a gradient scaler.

Parameters keep their own dtype (float32 as a rule: they are the master weights); autocast chooses the dtype of each
operation.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from accelerate.errors import PrepareError, StateError
from accelerate.precision.base import Precision
from accelerate.precision.forward import install

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["AutocastPrecision", "ScaledPrecision"]

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}


class AutocastPrecision(Precision):
    """Autocast around the forward, no scaling: bfloat16 has float32's range."""

    def __init__(self, mode: str, device: torch.device, settings: dict[str, Any]) -> None:
        self.mode = mode  # type: ignore[misc]  # one class serves bf16, fp16 and the fp8 modes
        self.device = device
        self.dtype = _DTYPES[mode]
        self.settings = settings

    def _context(self, handler: Any | None = None) -> AbstractContextManager[Any]:
        handler = handler if handler is not None else self.settings.get("autocast")
        if handler is None:
            return torch.autocast(self.device.type, dtype=self.dtype)
        return torch.autocast(
            self.device.type, dtype=self.dtype, enabled=handler.enabled, cache_enabled=handler.cache_enabled
        )

    def forward_context(self, handler: Any | None = None) -> AbstractContextManager[Any]:
        return self._context(handler)

    def prepare_model(self, model: torch.nn.Module) -> torch.nn.Module:
        handler = self.settings.get("autocast")
        policy = getattr(handler, "outputs", None) or "auto"
        if handler is None:
            context: Callable[[], AbstractContextManager[Any]] = partial(
                torch.autocast, self.device.type, dtype=self.dtype
            )
        elif not handler.enabled:
            context = nullcontext
        else:
            context = self._context
        return install(model, context, policy)

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


class ScaledPrecision(AutocastPrecision):
    """float16: autocast, and a gradient scaler that skips a step whose gradients are not finite.

    The scale is updated after the last optimizer of a step, that is, before the next backward or when the scaler is
    looked at: several optimizers of one step see one scale.
    """

    def __init__(self, device: torch.device, settings: dict[str, Any], scaler: Any | None = None) -> None:
        super().__init__("fp16", device, settings)
        self._scaler = scaler if scaler is not None else _make_scaler(device, settings.get("scaler"))
        self._unscaled: set[int] = set()
        self._stepped = False

    @property
    def scaler(self) -> Any:
        self._settle()
        return self._scaler

    @scaler.setter
    def scaler(self, value: Any) -> None:
        self._scaler = value

    def prepare_model(self, model: torch.nn.Module) -> torch.nn.Module:
        low = [n for n, p in model.named_parameters() if p.requires_grad and p.dtype == torch.float16]
        if low:
            raise PrepareError(
                f"mixed_precision='fp16' got a model whose trainable parameters are float16 already ({low[0]!r} and "
                f"{len(low) - 1} more): a gradient scaler needs float32 parameters to put the scaled gradients right. "
                "Load the model in float32 (autocast computes in float16), or use mixed_precision='bf16'."
            )
        return super().prepare_model(model)

    def _settle(self) -> None:
        if self._stepped:
            self._scaler.update()
            self._stepped = False
            self._unscaled.clear()

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        self._settle()
        self._scaler.scale(loss).backward(**kwargs)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        if id(optimizer) in self._unscaled:
            return
        if self._scaler.is_enabled() and getattr(self._scaler, "_scale", self) is None:
            # No loss was scaled yet; the scale itself comes with the first.
            if _has_gradients(optimizer):
                raise StateError(
                    "Under mixed_precision='fp16' gradients were to be unscaled that no scaled loss gave: they come "
                    "from loss.backward(). Call accelerator.backward(loss), which scales it first."
                )
            return
        self._scaler.unscale_(optimizer)
        self._unscaled.add(id(optimizer))

    def step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> bool:
        if closure is not None:
            raise TypeError(
                "optimizer.step(closure) was called under mixed_precision='fp16': a gradient scaler cannot rerun a "
                "closure. Call backward yourself and step() without a closure, or use mixed_precision='bf16'."
            )
        if not _has_gradients(optimizer):
            return True
        self.unscale(optimizer)
        self._scaler.step(optimizer)
        found = self._scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        self._stepped = True
        return not any(bool(flag.item()) for flag in found.values()) if self._scaler.is_enabled() else True


def _has_gradients(optimizer: torch.optim.Optimizer) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


def _make_scaler(device: torch.device, handler: Any | None) -> Any:
    kwargs = handler.to_kwargs() if handler is not None else {}
    return torch.amp.GradScaler(device.type, **kwargs)
