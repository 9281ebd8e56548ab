"""Compatibility path of the hooks on modules."""

from accelerate.comm.nested import find_device
from accelerate.comm.placement import send_to_device
from accelerate.devices.memory import clear_device_cache
from accelerate.objects import recursive_getattr
from accelerate.offload.align import (
    AlignDevicesHook,
    attach_align_device_hook,
    attach_align_device_hook_on_blocks,
    attach_execution_device_hook,
)
from accelerate.offload.casting import LayerwiseCastingHook
from accelerate.offload.cpu import CpuOffload, UserCpuOffloadHook
from accelerate.offload.disk import PrefixedDataset
from accelerate.offload.hooks import ADDED_ATTRIBUTES as _accelerate_added_attributes  # noqa: N811  # the name others read
from accelerate.offload.hooks import (
    ModelHook,
    SequentialHook,
    add_hook_to_module,
    remove_hook_from_module,
    remove_hook_from_submodules,
)
from accelerate.offload.tensors import get_non_persistent_buffers, named_module_tensors, set_module_tensor_to_device
from accelerate.state import PartialState

__all__ = [
    "AlignDevicesHook",
    "CpuOffload",
    "LayerwiseCastingHook",
    "ModelHook",
    "PartialState",
    "PrefixedDataset",
    "SequentialHook",
    "UserCpuOffloadHook",
    "_accelerate_added_attributes",
    "add_hook_to_module",
    "attach_align_device_hook",
    "attach_align_device_hook_on_blocks",
    "attach_execution_device_hook",
    "clear_device_cache",
    "find_device",
    "get_non_persistent_buffers",
    "named_module_tensors",
    "recursive_getattr",
    "remove_hook_from_module",
    "remove_hook_from_submodules",
    "send_to_device",
    "set_module_tensor_to_device",
]
