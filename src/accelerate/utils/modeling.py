"""Compatibility path of models as tensors on devices."""

from accelerate.devices.memory import clear_device_cache
from accelerate.modules import is_peft_model
from accelerate.offload import logger
from accelerate.offload.budget import get_balanced_memory, get_max_memory
from accelerate.offload.device_map import check_device_map, clean_device_map, infer_auto_device_map
from accelerate.offload.disk import load_offloaded_weight, offload_weight, save_offload_index
from accelerate.offload.load import load_checkpoint_in_model, load_offloaded_weights, load_state_dict
from accelerate.offload.sizes import (
    calculate_maximum_sizes,
    compute_module_sizes,
    compute_module_total_buffer_size,
    convert_file_size_to_int,
    dtype_byte_size,
    get_max_layer_size,
)
from accelerate.offload.sizes import proper_dtype as _get_proper_dtype
from accelerate.offload.state import get_state_dict_from_offload, get_state_dict_offloaded_model
from accelerate.offload.tensors import (
    align_module_device,
    check_device_same,
    get_non_persistent_buffers,
    has_offloaded_params,
    id_tensor_storage,
    named_module_tensors,
    set_module_tensor_to_device,
)
from accelerate.offload.tied import (
    check_tied_parameters_in_config,
    check_tied_parameters_on_same_device,
    find_tied_parameters,
    retie_parameters,
)
from accelerate.precision.calls import get_grad_scaler, get_mixed_precision_context_manager

__all__ = [
    "_get_proper_dtype",
    "align_module_device",
    "calculate_maximum_sizes",
    "check_device_map",
    "check_device_same",
    "check_tied_parameters_in_config",
    "check_tied_parameters_on_same_device",
    "clean_device_map",
    "clear_device_cache",
    "compute_module_sizes",
    "compute_module_total_buffer_size",
    "convert_file_size_to_int",
    "dtype_byte_size",
    "find_tied_parameters",
    "get_balanced_memory",
    "get_grad_scaler",
    "get_max_layer_size",
    "get_max_memory",
    "get_mixed_precision_context_manager",
    "get_non_persistent_buffers",
    "get_state_dict_from_offload",
    "get_state_dict_offloaded_model",
    "has_offloaded_params",
    "id_tensor_storage",
    "infer_auto_device_map",
    "is_peft_model",
    "load_checkpoint_in_model",
    "load_offloaded_weight",
    "load_offloaded_weights",
    "load_state_dict",
    "logger",
    "named_module_tensors",
    "offload_weight",
    "retie_parameters",
    "save_offload_index",
    "set_module_tensor_to_device",
]
