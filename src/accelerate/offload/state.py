"""The state of a model whose tensors are elsewhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from accelerate.offload.align import AlignDevicesHook
from accelerate.offload.hooks import SequentialHook
from accelerate.offload.tensors import Device, align_module_device, has_offloaded_params

__all__ = ["get_state_dict_from_offload", "get_state_dict_offloaded_model", "offloading_hook"]


def offloading_hook(module: nn.Module) -> AlignDevicesHook | None:
    """The hook that brings this module's tensors in for a call, also where it is one of several."""
    hook = module.__dict__.get("_hf_hook")
    for each in hook.hooks if isinstance(hook, SequentialHook) else (hook,):
        if isinstance(each, AlignDevicesHook) and each.offload:
            return each
    return None


def get_state_dict_from_offload(
    module: nn.Module, module_name: str, state_dict: dict[str, Any], device_to_put_offload: Device = "cpu"
) -> dict[str, Any]:
    """Fills in those entries of ``state_dict`` that are tensors of ``module``, brought to a device, and returns it.

    ``module_name`` is the full name of any of the module's tensors.
    """
    root = module_name.rpartition(".")[0]
    prefix = f"{root}." if root else ""
    device = torch.device(device_to_put_offload) if has_offloaded_params(module) else None
    with align_module_device(module, device):
        for key, value in module.state_dict().items():
            if prefix + key in state_dict:
                state_dict[prefix + key] = value
    return state_dict


def get_state_dict_offloaded_model(model: nn.Module) -> dict[str, torch.Tensor]:
    """The whole state dict of a model that is offloaded in part; what hooks hold comes from them, in main memory.

    Raises:
        RuntimeError: a tensor is on the meta device and no hook knows its data.
    """
    state: dict[str, torch.Tensor] = model.state_dict()
    missing = {name for name, tensor in state.items() if tensor.device.type == "meta"}
    for path, module in model.named_modules(remove_duplicate=False):
        hook = offloading_hook(module) if missing else None
        if hook is None or hook.weights_map is None:
            continue
        prefix = f"{path}." if path else ""
        for name in [name for name in missing if name.startswith(prefix)]:
            if name.removeprefix(prefix) in hook.weights_map:
                state[name] = hook.weights_map[name.removeprefix(prefix)].to("cpu")
                missing.discard(name)
    if missing:
        raise RuntimeError(
            f"These tensors are on the meta device and no hook has their data: {', '.join(sorted(missing))}. "
            "Load the checkpoint before asking for the state."
        )
    return state
