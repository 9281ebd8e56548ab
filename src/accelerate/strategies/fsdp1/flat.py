"""What version 1 made of a model's parameters: which flat parameter holds which of them, and over whom it lies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel

from accelerate.checkpoint.naming import strip_markers

__all__ = ["flat_by_name", "handles", "holders", "shard_groups", "shared_by_name"]


def handles(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """(name of the unit, its handle) for every unit that has parameters."""
    for name, module in model.named_modules():
        if isinstance(module, FullyShardedDataParallel) and module._handle is not None:
            yield name, module._handle


def flat_by_name(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Canonical name of an original parameter → the flat parameter it is a part of."""
    found: dict[str, torch.nn.Parameter] = {}
    for unit, handle in handles(model):
        prefix = f"{unit}." if unit else ""
        for name in handle.flat_param._fqns:
            found[strip_markers(prefix + name)] = handle.flat_param
    return found


def shared_by_name(model: torch.nn.Module) -> list[list[str]]:
    """Groups of canonical names that are one parameter."""
    groups: dict[str, list[str]] = {}
    for unit, handle in handles(model):
        prefix = f"{unit}." if unit else ""
        flat = handle.flat_param
        for shared in flat._shared_param_infos:
            first = strip_markers(f"{prefix}{shared.prim_module_name}.{shared.prim_param_name}".replace("..", "."))
            other = strip_markers(f"{prefix}{shared.module_name}.{shared.param_name}".replace("..", "."))
            groups.setdefault(first, [first]).append(other)
    return list(groups.values())


def holders(model: torch.nn.Module) -> dict[int, list[str]]:
    """id of a flat parameter → canonical names of what is in it."""
    found: dict[int, list[str]] = {}
    for name, flat in flat_by_name(model).items():
        found.setdefault(id(flat), []).append(name)
    return found


def shard_groups(model: torch.nn.Module) -> dict[int, Any]:
    """id of a parameter that an optimizer may step → the group over which it is divided, None where it is whole."""
    found: dict[int, Any] = {}
    for _, handle in handles(model):
        group = handle.process_group if handle.uses_sharded_strategy else None
        for parameter in (handle.flat_param, *(handle.flat_param._params or ())):
            found[id(parameter)] = group
    return found
