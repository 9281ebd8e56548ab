"""Mixed precision for code that has no Accelerator at hand."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from accelerate import runtime

if TYPE_CHECKING:
    from accelerate.config.enums import DistributedType
    from accelerate.config.handlers import AutocastKwargs

__all__ = ["get_grad_scaler", "get_mixed_precision_context_manager"]


def _sharded(device_type: str, **kwargs: Any) -> Any:
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    return ShardedGradScaler(device_type, **kwargs)


# Parameters that are divided over ranks need a scaler whose ranks agree on overflow.
_SCALERS = {"FSDP": _sharded}


def _device_type() -> str:
    held = runtime.find()
    return held.device.type if held is not None else "cuda" if torch.cuda.is_available() else "cpu"


def get_grad_scaler(distributed_type: DistributedType | None = None, **kwargs: Any) -> Any:
    """A gradient scaler for this process's device; keywords go to its class. For FSDP, one whose ranks agree."""
    make = _SCALERS.get(getattr(distributed_type, "value", ""), torch.amp.GradScaler)
    return make(_device_type(), **kwargs)


def get_mixed_precision_context_manager(
    native_amp: bool = False, autocast_kwargs: AutocastKwargs | None = None
) -> AbstractContextManager[Any]:
    """The autocast context of the precision in use, or one that does nothing without ``native_amp``.

    Raises:
        StateError: no Accelerator has chosen a precision yet.
    """
    if not native_amp:
        return nullcontext()
    precision = runtime.current().precision
    if precision is None:
        return nullcontext()
    return precision.forward_context() if autocast_kwargs is None else precision.forward_context(autocast_kwargs)
