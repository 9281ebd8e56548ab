"""Takes wrappers off a model: the strategy's, ``torch.compile``'s, and the mixed-precision forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from accelerate import runtime
from accelerate.precision import forward as precise

if TYPE_CHECKING:
    from accelerate.strategies.base import Strategy

__all__ = ["extract_model_from_parallel", "known_wrapper", "peel"]


def known_wrapper(model: Any) -> Any | None:
    """The model inside one wrapper of torch's own (DataParallel, DDP, FSDP 1) or an engine's; None where there is
    none. Recognised by class name and attribute, so that no engine is imported."""
    inner = getattr(model, "module", None)
    if not isinstance(inner, torch.nn.Module):
        return None
    names = {cls.__name__ for cls in type(model).__mro__}
    wrappers = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "DeepSpeedEngine"}
    return inner if names & wrappers else None


def _compiled_inner(model: Any) -> Any | None:
    return model._modules.get("_orig_mod") if isinstance(model, torch.nn.Module) else None


def peel(model: Any, strategy: Strategy[Any] | None = None) -> tuple[Any, Any | None]:
    """(bare model, outermost compile wrapper or None): every parallel wrapper off, compile wrappers on the way."""
    compiled = None
    while True:
        inner = _compiled_inner(model)
        if inner is not None:
            compiled, model = compiled or model, inner
            continue
        inner = strategy.unwrap(model) if strategy is not None and isinstance(model, torch.nn.Module) else model
        if inner is model:
            inner = known_wrapper(model)
        if inner is None:
            return model, compiled
        model = inner


def extract_model_from_parallel(
    model: Any, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True, recursive: bool = False
) -> Any:
    """The model inside its wrappers; the very same object where there is nothing to take off.

    Args:
        model: Any model, prepared or not.
        keep_fp32_wrapper: Whether its forward goes on running in mixed precision.
        keep_torch_compile: Whether a compiled model comes back compiled.
        recursive: Whether wrappers around submodules are taken off too (the model is changed in place).
    """
    held = runtime.find()
    bare, compiled = peel(model, held.strategy if held is not None else None)
    if recursive:
        bare = _unwrap_children(bare)
    if not keep_fp32_wrapper and isinstance(bare, torch.nn.Module):
        precise.remove(bare)
    if compiled is None or not keep_torch_compile:
        return bare
    if compiled._orig_mod is not bare:
        # The compile wrapper stood around a parallel wrapper; it goes on around the bare model.
        compiled._orig_mod = bare
    return compiled


def _unwrap_children(module: Any) -> Any:
    while (inner := known_wrapper(module)) is not None:
        module = inner
    for name, child in list(module.named_children()):
        bare = _unwrap_children(child)
        if bare is not child:
            setattr(module, name, bare)
    return module
