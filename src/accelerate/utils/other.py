"""Compatibility path of small things around models and machines."""

from accelerate.checkpoint.files import clean_state_dict_for_safetensors, load, save
from accelerate.launch.ports import free_port as get_free_port
from accelerate.machine import check_os_kernel, is_port_in_use
from accelerate.modules import get_model_tp_size, get_module_children_bottom_up, model_has_dtensor
from accelerate.objects import get_pretty_name, merge_dicts, recursive_getattr
from accelerate.offload.sizes import convert_bytes
from accelerate.strategies.unwrap import extract_model_from_parallel
from accelerate.sync import wait_for_everyone
from accelerate.transforms.compile import (
    compile_regions,
    compile_regions_deepspeed,
    compile_regions_fsdp2,
    has_compiled_regions,
    is_compiled_module,
)

__all__ = [
    "check_os_kernel",
    "clean_state_dict_for_safetensors",
    "compile_regions",
    "compile_regions_deepspeed",
    "compile_regions_fsdp2",
    "convert_bytes",
    "extract_model_from_parallel",
    "get_free_port",
    "get_model_tp_size",
    "get_module_children_bottom_up",
    "get_pretty_name",
    "has_compiled_regions",
    "is_compiled_module",
    "is_port_in_use",
    "load",
    "merge_dicts",
    "model_has_dtensor",
    "recursive_getattr",
    "save",
    "wait_for_everyone",
]
