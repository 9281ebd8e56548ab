"""Gradient compression for DistributedDataParallel."""

from __future__ import annotations

from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd

__all__ = ["register_comm_hook"]


def _bf16_compress(group: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    # torch refuses its own bf16 hook by name on anything but NCCL; the same cast runs on gloo.
    return default_hooks.bf16_compress_hook(group, bucket)


def _bf16_around(hook: Any) -> Any:
    compressing = default_hooks.bf16_compress_wrapper(hook)

    def bf16_around(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return compressing(state, bucket)

    return bf16_around


_HOOKS: dict[str, Any] = {
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": _bf16_compress,
    "power_sgd": power_sgd.powerSGD_hook,
    "batched_power_sgd": power_sgd.batched_powerSGD_hook,
}
_WRAPPERS: dict[str, Any] = {"fp16": default_hooks.fp16_compress_wrapper, "bf16": _bf16_around}


def _mend_batched() -> None:
    """torch 2.6 to 2.13: the batched hook hands one matrix to a function that asserts a batch of them."""
    batch_only: Any = power_sgd._orthogonalize
    if getattr(batch_only, "takes_one", False):
        return

    def orthogonalize(matrices: torch.Tensor, epsilon: float = 0) -> None:
        batch_only(matrices if matrices.ndim == 3 else matrices.unsqueeze(0), epsilon)

    orthogonalize.takes_one = True  # type: ignore[attr-defined]
    power_sgd._orthogonalize = orthogonalize


def _annotated(hook: Any) -> Any:
    # DDP checks the annotations of a hook by identity, and a postponed annotation is a string.
    hook.__annotations__ = {"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]}
    return hook


def register_comm_hook(model: Any, handler: Any) -> None:
    """Puts the handler's ``comm_hook``, inside its ``comm_wrapper``, on a DDP model. Collective with PowerSGD.

    ``handler.comm_state_option`` goes to ``PowerSGDState``.
    """
    name, wrapper = str(handler.comm_hook), str(handler.comm_wrapper)
    if name == "no":
        return
    state = power_sgd.PowerSGDState(None, **dict(handler.comm_state_option)) if "power_sgd" in name else None
    if name == "batched_power_sgd":
        _mend_batched()
    hook = _HOOKS[name]
    if wrapper != "no":
        hook = _WRAPPERS[wrapper](hook)
    if hook is not _HOOKS[name] or hook is _bf16_compress:
        hook = _annotated(hook)
    model.register_comm_hook(state=state, hook=hook)
