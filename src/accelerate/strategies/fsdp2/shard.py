"""Calls torch's ``fully_shard`` on a model's units and then on the model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from accelerate.errors import MissingPackageError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["fsdp_modules", "offload_policy", "root_precision", "root_reshard", "set_prefetch", "shard"]


@cache
def _takes_ignored() -> bool:
    return "ignored_params" in inspect.signature(fully_shard).parameters


def offload_policy(asked: Any, device: torch.device) -> OffloadPolicy:
    """The policy for what the plugin's ``cpu_offload`` holds. Memory is pinned only where there is an accelerator."""
    if not asked:
        return OffloadPolicy()
    if isinstance(asked, OffloadPolicy) and not isinstance(asked, CPUOffloadPolicy):
        return asked
    pinned = getattr(asked, "pin_memory", True) and device.type != "cpu"
    return CPUOffloadPolicy(pin_memory=pinned)


def root_reshard(reshard: bool | int) -> bool | None:
    """What the outermost unit does after forward: backward begins with it, so it is freed only where nothing is kept.

    None leaves it to torch, which keeps the root and frees a unit that turns out not to be one.
    """
    return False if reshard is False else None


def root_precision(policy: MixedPrecisionPolicy) -> MixedPrecisionPolicy:
    """The policy of the outermost unit: what the model returns is not cast down again after the job's precision has
    made it float32. A policy whose outputs have another dtype than its parameters says what it wants, and is kept."""
    if policy.output_dtype is not None and policy.output_dtype == policy.param_dtype:
        return replace(policy, output_dtype=None)
    return policy


def shard(
    model: torch.nn.Module,
    units: Sequence[torch.nn.Module],
    *,
    mesh: DeviceMesh,
    reshard: bool | int = True,
    mixed_precision: MixedPrecisionPolicy | None = None,
    offload: OffloadPolicy | None = None,
    ignored: set[torch.nn.Parameter] | None = None,
    before: Callable[[torch.nn.Module], None] | None = None,
) -> FSDPModule:
    """Collective. Divides ``model`` in place over ``mesh``; ``before(unit)`` is called right before a unit is divided.

    Raises:
        MissingPackageError: parameters are to be left out and this torch cannot do that.
    """
    kwargs: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": mixed_precision or MixedPrecisionPolicy(),
        "offload_policy": offload or OffloadPolicy(),
    }
    if ignored:
        if not _takes_ignored():
            raise MissingPackageError(
                f"{len(ignored)} parameters are to be left out of sharding (ignored_modules, or scalars), which torch "
                f"{torch.__version__} cannot do under FSDP version 2. Install torch 2.8 or newer."
            )
        kwargs["ignored_params"] = ignored
    for unit in units:
        if before is not None:
            before(unit)
        fully_shard(unit, reshard_after_forward=reshard, **kwargs)
    if before is not None:
        before(model)
    kwargs["mp_policy"] = root_precision(kwargs["mp_policy"])
    return fully_shard(model, reshard_after_forward=root_reshard(reshard), **kwargs)


def fsdp_modules(model: torch.nn.Module) -> list[FSDPModule]:
    """The divided modules of ``model``, itself included, parents first."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def set_prefetch(units: Sequence[torch.nn.Module], *, forward: bool) -> None:
    """Has each unit begin to gather the next one's parameters before it computes. Backward prefetches by itself."""
    if not forward:
        return
    sharded = [unit for unit in units if isinstance(unit, FSDPModule)]
    for unit, following in zip(sharded, sharded[1:], strict=False):
        unit.set_modules_to_forward_prefetch([following])
