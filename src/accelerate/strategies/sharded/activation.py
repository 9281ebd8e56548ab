"""Activation checkpointing of units: activations are computed again in backward, or kept in host memory."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    ActivationWrapper,
    CheckpointImpl,
    checkpoint_wrapper,
    offload_wrapper,
)

from accelerate.logging import get_logger

__all__ = ["checkpoint_units", "is_checkpointed"]

log = get_logger(__name__)


def is_checkpointed(module: torch.nn.Module) -> bool:
    """Whether this very module is a checkpoint (or offload) wrapper."""
    return isinstance(module, ActivationWrapper)


def checkpoint_units(
    model: torch.nn.Module, units: Iterable[torch.nn.Module], *, recompute: bool = True, offload: bool = False
) -> torch.nn.Module:
    """``model`` with a wrapper around every unit, put in place. Parameter names in ``state_dict`` stay as they are.

    ``recompute`` runs a unit's forward again in backward; ``offload`` moves what a unit keeps (its inputs, where it is
    recomputed) to host memory. Both may be on.
    """
    wanted = {unit for unit in units if not is_checkpointed(unit)}
    if not wanted:
        if not any(is_checkpointed(module) for module in model.modules()):
            log.warning_once(
                f"Activation checkpointing was asked for, but {type(model).__name__} has no units to checkpoint: the "
                "wrap policy picks no submodule. Name the layer class (transformer_cls_names_to_wrap) or a size "
                "(min_num_params)."
            )
        return model
    wrap = partial(_wrapped, recompute=recompute, offload=offload)
    fresh: dict[torch.nn.Module, torch.nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child in wanted:
                if child not in fresh:
                    fresh[child] = wrap(child)
                setattr(parent, name, fresh[child])
    return model


def _wrapped(module: torch.nn.Module, *, recompute: bool, offload: bool) -> Any:
    wrapped = checkpoint_wrapper(module, checkpoint_impl=CheckpointImpl.NO_REENTRANT) if recompute else module
    return offload_wrapper(wrapped) if offload else wrapped
