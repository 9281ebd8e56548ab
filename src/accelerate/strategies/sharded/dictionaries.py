"""State dictionaries of divided models, as libraries that replace this step ask for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.distributed.fsdp import FullyShardedDataParallel

from accelerate.modules import is_peft_model
from accelerate.strategies.sharded.adapters import adapter_names
from accelerate.strategies.sharded.state import ShardedStateAdapter

__all__ = ["_get_model_state_dict", "_prepare_sd_options", "_set_model_state_dict"]


def _adapter(model: torch.nn.Module) -> ShardedStateAdapter:
    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        from accelerate.strategies.fsdp1.state import Fsdp1StateAdapter

        return Fsdp1StateAdapter()
    from accelerate.strategies.fsdp2.state import Fsdp2StateAdapter

    return Fsdp2StateAdapter()


def _prepare_sd_options(fsdp_plugin: Any) -> StateDictOptions:
    """The options that say what the plugin's ``state_dict_type`` means: whole tensors on the first rank, or parts."""
    kind = fsdp_plugin.state_dict_type
    whole = str(getattr(kind, "name", kind)).upper() == "FULL_STATE_DICT"
    return StateDictOptions(full_state_dict=whole, cpu_offload=whole, broadcast_from_rank0=whole)


def _get_model_state_dict(
    model: torch.nn.Module, adapter_only: bool = False, sd_options: StateDictOptions | None = None
) -> dict[str, Any]:
    """Collective. A divided model's state by canonical name.

    With ``sd_options.full_state_dict`` whole tensors on the first rank (nothing elsewhere), brought together one after
    the other; else this rank's parts as DTensors. ``adapter_only`` takes a PEFT model's active adapter alone.
    """
    adapter, bare = _adapter(model), getattr(model, "module", model)
    names = None
    if adapter_only and is_peft_model(bare):
        names = adapter_names(bare, adapter.model_state(model).tensors)
    if sd_options is not None and sd_options.full_state_dict:
        state: dict[str, Any] = adapter.full_state_dict(model, cpu=bool(sd_options.cpu_offload))
    else:
        state = adapter.tensors(model)
    return state if names is None else {saved: state[own] for saved, own in names.items() if own in state}


def _set_model_state_dict(
    model: torch.nn.Module,
    state_dict: Mapping[str, Any],
    adapter_only: bool = False,
    sd_options: StateDictOptions | None = None,
) -> Any:
    """Collective. Loads whole or divided tensors by canonical name; the report of what was restored.

    Raises:
        CheckpointMismatchError: names or shapes differ and ``sd_options`` is strict; nothing was changed.
    """
    adapter, bare = _adapter(model), getattr(model, "module", model)
    strict = True if sd_options is None else sd_options.strict
    if adapter_only and is_peft_model(bare):
        names = adapter_names(bare, adapter.model_state(model).tensors)
        state_dict = {names.get(name, name): value for name, value in state_dict.items()}
        strict = False
    return adapter.load_model_state(model, state_dict, strict=strict)
