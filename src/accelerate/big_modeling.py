"""Compatibility path of models that do not fit on one device.

Other libraries replace ``check_device_map``, ``attach_align_device_hook_on_blocks`` and ``dispatch_model`` here; the
functions that call them look here first.
"""

from accelerate.offload.align import (
    AlignDevicesHook,
    attach_align_device_hook,
    attach_align_device_hook_on_blocks,
)
from accelerate.offload.budget import get_balanced_memory
from accelerate.offload.casting import LAYERS as SUPPORTED_PYTORCH_LAYERS_FOR_UPCASTING
from accelerate.offload.casting import LayerwiseCastingHook, attach_layerwise_casting_hooks
from accelerate.offload.cpu import CpuOffload, UserCpuOffloadHook, cpu_offload_with_hook
from accelerate.offload.device_map import check_device_map, infer_auto_device_map
from accelerate.offload.disk import OffloadedWeightsLoader, extract_submodules_state_dict, offload_state_dict
from accelerate.offload.dispatch import cpu_offload, disk_offload, dispatch_model
from accelerate.offload.empty import init_empty_weights, init_on_device
from accelerate.offload.hooks import add_hook_to_module
from accelerate.offload.load import load_checkpoint_and_dispatch, load_checkpoint_in_model
from accelerate.offload.tied import find_tied_parameters, retie_parameters

__all__ = [
    "SUPPORTED_PYTORCH_LAYERS_FOR_UPCASTING",
    "AlignDevicesHook",
    "CpuOffload",
    "LayerwiseCastingHook",
    "OffloadedWeightsLoader",
    "UserCpuOffloadHook",
    "add_hook_to_module",
    "attach_align_device_hook",
    "attach_align_device_hook_on_blocks",
    "attach_layerwise_casting_hooks",
    "check_device_map",
    "cpu_offload",
    "cpu_offload_with_hook",
    "disk_offload",
    "dispatch_model",
    "extract_submodules_state_dict",
    "find_tied_parameters",
    "get_balanced_memory",
    "infer_auto_device_map",
    "init_empty_weights",
    "init_on_device",
    "load_checkpoint_and_dispatch",
    "load_checkpoint_in_model",
    "offload_state_dict",
    "retie_parameters",
]
