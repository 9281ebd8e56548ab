"""Whole models that wait in main memory and come to the device when they are called."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

import torch
from torch import nn

from accelerate import devices, runtime
from accelerate.comm.placement import send_to_device
from accelerate.offload.hooks import ModelHook, add_hook_to_module, remove_hook_from_module
from accelerate.offload.tensors import Device, check_device_same

__all__ = ["CpuOffload", "UserCpuOffloadHook", "cpu_offload_with_hook", "default_device"]


def default_device() -> torch.device:
    """The device of this process, or the one it would get where no state was set up."""
    held = runtime.find()
    return held.device if held is not None else torch.device(devices.choose().type)


class CpuOffload(ModelHook):
    """Keeps a model in main memory until it is called; then it moves to ``execution_device`` and stays there.

    The call first sends the model of ``prev_module_hook`` back, so that models of a chain take turns on the device.
    """

    def __init__(
        self, execution_device: Device | None = None, prev_module_hook: UserCpuOffloadHook | None = None
    ) -> None:
        self.prev_module_hook = prev_module_hook
        self.execution_device = execution_device if execution_device is not None else default_device()

    def init_hook(self, module: nn.Module) -> nn.Module:
        return module.to("cpu")

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        target = self.execution_device
        held = islice(chain(module.parameters(), module.buffers()), 1)
        if not all(check_device_same(tensor.device, target) for tensor in held):
            if self.prev_module_hook is not None:
                self.prev_module_hook.offload()
            module.to(target)
        return send_to_device(args, target), send_to_device(kwargs, target)


class UserCpuOffloadHook:
    """What the user holds of a :class:`CpuOffload`: the model can be sent back, and the hook taken off."""

    def __init__(self, model: nn.Module, hook: ModelHook) -> None:
        self.hook, self.model = hook, model

    def offload(self) -> None:
        """Sends the model back to main memory, and gives the device its memory back."""
        kinds = {parameter.device.type for parameter in self.model.parameters()} - {"cpu", "meta"}
        self.hook.init_hook(self.model)
        for kind in kinds:
            devices.get(kind).memory.empty_cache()

    def remove(self) -> None:
        """Takes the hook off the model, which stays where it is."""
        remove_hook_from_module(self.model)


def cpu_offload_with_hook(
    model: nn.Module,
    execution_device: Device | None = None,
    prev_module_hook: UserCpuOffloadHook | None = None,
) -> tuple[nn.Module, UserCpuOffloadHook]:
    """Moves a model to main memory and has it come to ``execution_device`` (default: this process's) when called.

    It stays there until ``offload()`` of the hook that is returned, which the next model of a chain calls when it
    got this hook as its ``prev_module_hook``.
    """
    hook = CpuOffload(execution_device=execution_device, prev_module_hook=prev_module_hook)
    add_hook_to_module(model, hook, append=True)
    return model, UserCpuOffloadHook(model, hook)
