"""Compatibility path of fully sharded training.

Libraries look into this file's text for ``def fsdp2_prepare_model`` and ``def _prepare_sd_options`` before they replace
these; the functions are defined where they belong and imported here.
"""

from accelerate.modules import is_peft_model
from accelerate.strategies.fsdp2.by_hand import (
    disable_fsdp_ram_efficient_loading,
    enable_fsdp_ram_efficient_loading,
    ensure_weights_retied,
    fsdp2_apply_ac,
    fsdp2_canonicalize_names,
    fsdp2_load_full_state_dict,
    fsdp2_prepare_auto_wrap_policy,
    fsdp2_prepare_model,
    fsdp2_switch_optimizer_parameters,
    get_fsdp2_grad_scaler,
    get_parameters_from_modules,
)
from accelerate.strategies.sharded.dictionaries import (
    _get_model_state_dict,
    _prepare_sd_options,
    _set_model_state_dict,
)
from accelerate.strategies.sharded.merge import merge_fsdp_weights
from accelerate.strategies.sharded.saving import (
    load_fsdp_model,
    load_fsdp_optimizer,
    save_fsdp_model,
    save_fsdp_optimizer,
)

__all__ = [
    "_get_model_state_dict",
    "_prepare_sd_options",
    "_set_model_state_dict",
    "disable_fsdp_ram_efficient_loading",
    "enable_fsdp_ram_efficient_loading",
    "ensure_weights_retied",
    "fsdp2_apply_ac",
    "fsdp2_canonicalize_names",
    "fsdp2_load_full_state_dict",
    "fsdp2_prepare_auto_wrap_policy",
    "fsdp2_prepare_model",
    "fsdp2_switch_optimizer_parameters",
    "get_fsdp2_grad_scaler",
    "get_parameters_from_modules",
    "is_peft_model",
    "load_fsdp_model",
    "load_fsdp_optimizer",
    "merge_fsdp_weights",
    "save_fsdp_model",
    "save_fsdp_optimizer",
]
