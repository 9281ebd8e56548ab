"""Gradients where an engine keeps them: their norm, their tensors, and throwing them away.

DeepSpeed's optimizers do not leave gradients in ``parameter.grad``. Which attributes hold them differs with the ZeRO
stage; this module is the one place that knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["discard", "norm_of", "remembered", "scale", "tensors"]


def _flatten(held: Any) -> Iterator[torch.Tensor]:
    if isinstance(held, torch.Tensor):
        yield held
    elif isinstance(held, dict):
        for value in held.values():
            yield from _flatten(value)
    elif isinstance(held, (list, tuple)):
        for value in held:
            yield from _flatten(value)


def _offloaded(optimizer: Any) -> bool:
    return bool(getattr(optimizer, "cpu_offload", False) or getattr(optimizer, "offload_optimizer", False))


def tensors(engine: Any) -> list[torch.Tensor]:
    """The tensors of this rank's complete gradients, each once. They may be scaled by the loss scale."""
    optimizer = engine.optimizer
    if _offloaded(optimizer):
        masters = getattr(optimizer, "single_partition_of_fp32_groups", None)
        if masters is None:
            masters = optimizer.fp32_partitioned_groups_flat
        found = [master.grad for master in masters if master.grad is not None]
    elif hasattr(optimizer, "averaged_gradients"):
        found = list(_flatten(optimizer.averaged_gradients))
    elif hasattr(optimizer, "get_grads_for_norm"):
        found = list(_flatten(optimizer.get_grads_for_norm(for_clipping=True)))
    else:
        found = [p.grad for p in engine.module.parameters() if p.grad is not None]
    return list({id(tensor): tensor for tensor in found}.values())


def scale(engine: Any, factor: float) -> None:
    """Multiplies the complete gradients by ``factor``."""
    with torch.no_grad():
        for tensor in tensors(engine):
            tensor.mul_(factor)
    norms = getattr(engine.optimizer, "norm_for_param_grads", None)
    if norms:  # taken where gradients go to main memory
        for key in norms:
            norms[key] = norms[key] * factor


def norm_of(engine: Any) -> tuple[torch.Tensor, tuple[str, Any] | None]:
    """Collective. The 2-norm of the whole model's complete gradient at its true scale; and, where the engine would
    compute the same again in its step, the method that does so with what it would return."""
    optimizer = engine.optimizer
    scale_now = float(getattr(optimizer, "loss_scale", 1.0) or 1.0)
    with torch.no_grad():
        if hasattr(optimizer, "scaled_global_norm"):
            norm = optimizer.scaled_global_norm()
            return _tensor(norm) / scale_now, ("scaled_global_norm", norm)
        if hasattr(optimizer, "_get_norm_groups"):
            groups = optimizer._get_norm_groups()
            total = torch.stack([_tensor(group).float() for group in groups]).norm(2)
            return total / scale_now, ("_get_norm_groups", groups)
        if hasattr(optimizer, "get_grads_for_norm"):
            from deepspeed.runtime.utils import get_global_norm_of_tensors

            plain, _ = optimizer.get_grads_for_norm()
            return _tensor(get_global_norm_of_tensors(input_tensors=plain, mpu=optimizer.mpu, norm_type=2)), None
        return torch.nn.utils.get_total_norm([t.float() for t in tensors(engine)], 2.0) / scale_now, None


def _tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.tensor(float(value))


@contextmanager
def remembered(optimizer: Any, answer: tuple[str, Any] | None) -> Iterator[None]:
    """A block in which a method of ``optimizer`` gives an answer that is known already."""
    if answer is None:
        yield
        return
    name, value = answer
    setattr(optimizer, name, lambda *args, **kwargs: value)
    try:
        yield
    finally:
        delattr(optimizer, name)


def discard(engine: Any) -> None:
    """Throws complete gradients away, as if their backward had not been."""
    optimizer = engine.optimizer
    engine.zero_grad()
    if hasattr(optimizer, "clear_hp_grads"):
        optimizer.clear_hp_grads()
        optimizer.clear_lp_grads()
    if hasattr(optimizer, "averaged_gradients") and hasattr(optimizer, "all_grad_tensors"):
        optimizer.zero_grad(set_to_none=True)
        for held in (optimizer.averaged_gradients, optimizer.all_grad_tensors):
            held.update(dict.fromkeys(held))
        optimizer.micro_step_id = -1
        if _offloaded(optimizer):
            optimizer._offload_accumulated_param_ids = set()
            optimizer.reset_cpu_buffers()
    elif hasattr(optimizer, "_overflow_clean_up"):
        optimizer._pre_step()
        optimizer._overflow_clean_up(optimizer.loss_scale)
