"""The façade: ``Accelerator``, put together from one mixin a concern.

Other libraries import the names below from here, and replace some of them; who calls such a function looks here first
(:mod:`accelerate.replaced`).
"""

from __future__ import annotations

import torch

from accelerate import lazy
from accelerate.accelerator.facade import Accelerator, _split_batches

_HOMES = {
    "accelerate.config.compile": "TorchDynamoPlugin",
    "accelerate.config.parallelism": "ParallelismConfig",
    "accelerate.config.precision": "TERecipeKwargs",
    "accelerate.data.prepare": "prepare_data_loader",
    "accelerate.offload.state": "get_state_dict_offloaded_model",
    "accelerate.precision.ao": "convert_model_to_fp8_ao",
    "accelerate.state": "AcceleratorState",
    "accelerate.strategies.fsdp2.by_hand": "fsdp2_apply_ac fsdp2_prepare_model",
    "accelerate.strategies.sharded.saving": "load_fsdp_model load_fsdp_optimizer save_fsdp_model save_fsdp_optimizer",
    "accelerate.unbuilt": "convert_model",
}

__getattr__, __dir__, _ = lazy.attach(__name__, lazy.by_name(_HOMES))

__all__ = ["Accelerator", "_split_batches", "torch"]
