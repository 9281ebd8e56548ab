"""The hook that has a module's tensors and inputs on one device when it runs, and how a whole model gets it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from accelerate.comm.nested import find_device
from accelerate.comm.placement import send_to_device
from accelerate.offload.disk import PrefixedDataset
from accelerate.offload.hooks import ModelHook, add_hook_to_module
from accelerate.offload.tensors import Device, TiedParams, named_module_tensors, set_module_tensor_to_device

__all__ = [
    "AlignDevicesHook",
    "attach_align_device_hook",
    "attach_align_device_hook_on_blocks",
    "attach_execution_device_hook",
]

Skip = str | list[str] | None


class AlignDevicesHook(ModelHook):
    """Has a module's tensors and inputs on ``execution_device`` while it runs.

    offload: tensors are on the meta device between calls and come from ``weights_map`` (name → tensor; default: a copy
    in main memory) for the time of one. offload_buffers: buffers too. io_same_device: outputs go where the first
    tensor of the inputs was. place_submodules: children's tensors are handled here as well. skip_keys: outputs under
    these names stay where they are. tied_params_map: data pointer → device → tensor, so that tensors that share memory
    are on a device once.
    """

    def __init__(
        self,
        execution_device: Device | None = None,
        offload: bool = False,
        io_same_device: bool = False,
        weights_map: Mapping[str, torch.Tensor] | None = None,
        offload_buffers: bool = False,
        place_submodules: bool = False,
        skip_keys: Skip = None,
        tied_params_map: TiedParams | None = None,
    ) -> None:
        # How tensors are kept and fetched.
        self.offload, self.offload_buffers, self.place_submodules = offload, offload_buffers, place_submodules
        self.weights_map, self.tied_params_map = weights_map, tied_params_map
        # Where the call happens, and what becomes of its inputs and outputs.
        self.execution_device, self.io_same_device, self.skip_keys = execution_device, io_same_device, skip_keys
        self.input_device: torch.device | None = None
        self._placeholders: dict[str, torch.Tensor] = {}  # by name, for what is in place at the moment
        self._brought: list[tuple[int, torch.device]] = []  # entries of tied_params_map that this hook made

    def __repr__(self) -> str:
        large = ("weights_map", "tied_params_map", "original_devices")
        shown = {name: value for name, value in vars(self).items() if name[0] != "_" and name not in large}
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in shown.items())})"

    def _tensors(self, module: nn.Module) -> list[tuple[str, torch.Tensor]]:
        """The tensors that this hook offloads; buffers that no state dict holds stay where the module runs."""
        return list(
            named_module_tensors(
                module,
                include_buffers=self.offload_buffers,
                recurse=self.place_submodules,
                remove_non_persistent=True,
            )
        )

    def init_hook(self, module: nn.Module) -> nn.Module:
        if self.execution_device is not None and torch.device(self.execution_device).type == "meta":
            self.tied_params_map = None
        if not self.offload:
            if self.execution_device is not None:
                for name, _ in named_module_tensors(module, recurse=self.place_submodules):
                    self._to_execution_device(module, name)
            return module
        every = dict(named_module_tensors(module, recurse=self.place_submodules))
        self.original_devices: dict[str, torch.device] = {name: tensor.device for name, tensor in every.items()}
        offloaded = dict(self._tensors(module))
        if self.weights_map is None:
            self.weights_map = {name: tensor.detach().to("cpu") for name, tensor in offloaded.items()}
        for name in offloaded:
            set_module_tensor_to_device(module, name, "meta")
        if self.execution_device is not None:
            for name, tensor in every.items():
                if name not in offloaded and tensor.device.type != "meta":
                    self._to_execution_device(module, name)
        return module

    def _to_execution_device(self, module: nn.Module, name: str, value: torch.Tensor | None = None) -> None:
        assert self.execution_device is not None
        set_module_tensor_to_device(
            module, name, self.execution_device, value=value, tied_params_map=self.tied_params_map, clear_cache=False
        )

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self.io_same_device:
            self.input_device = find_device([args, kwargs])
        if self.execution_device is None:
            return args, kwargs
        if self.offload:
            assert self.weights_map is not None
            for name, tensor in self._tensors(module):
                if tensor.device.type == "meta":
                    self._bring(module, name, tensor, self.weights_map[name])
        return (
            send_to_device(args, self.execution_device),
            send_to_device(kwargs, self.execution_device, skip_keys=self.skip_keys),
        )

    def _bring(self, module: nn.Module, name: str, placeholder: torch.Tensor, value: torch.Tensor) -> None:
        assert self.execution_device is not None
        if self.tied_params_map is not None:
            shared = self.tied_params_map.get(value.data_ptr())
            device = torch.device(self.execution_device)
            if shared is not None and device not in shared:
                self._brought.append((value.data_ptr(), device))
        self._placeholders[name] = placeholder
        self._to_execution_device(module, name, value)

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        if self.offload:
            for name, placeholder in self._placeholders.items():
                path, _, leaf = name.rpartition(".")
                owner = module.get_submodule(path) if path else module
                held = owner._parameters if leaf in owner._parameters else owner._buffers
                held[leaf] = placeholder  # type: ignore[assignment]  # what it was before the call
            self._placeholders.clear()
            for pointer, device in self._brought:
                if self.tied_params_map is not None:
                    self.tied_params_map[pointer].pop(device, None)
            self._brought.clear()
        if self.io_same_device and self.input_device is not None:
            output = send_to_device(output, self.input_device, skip_keys=self.skip_keys)
        return output

    def detach_hook(self, module: nn.Module) -> nn.Module:
        if not self.offload or self.weights_map is None:
            return module
        for name, tensor in self._tensors(module):
            home = self.original_devices[name] if name in self.original_devices else torch.device("cpu")
            # What came straight from disk never was in memory, and may not fit there.
            if tensor.device.type == "meta" and home.type != "meta" and name in self.weights_map:
                set_module_tensor_to_device(
                    module, name, home, value=self.weights_map[name], tied_params_map=self.tied_params_map
                )
        return module


def _own_tensors(module: nn.Module) -> bool:
    return any(True for _ in named_module_tensors(module))


def _is_any(module: nn.Module, classes: Iterable[str] | None) -> bool:
    return classes is not None and type(module).__name__ in classes


def _below(weights_map: Mapping[str, torch.Tensor] | None, name: str) -> Mapping[str, torch.Tensor] | None:
    return PrefixedDataset(weights_map, f"{name}.") if weights_map is not None and name else weights_map


def _join(parent: str, child: str) -> str:
    return f"{parent}.{child}" if parent else child


def attach_execution_device_hook(
    module: nn.Module,
    execution_device: Device,
    skip_keys: Skip = None,
    preload_module_classes: Sequence[str] | None = None,
    tied_params_map: TiedParams | None = None,
) -> None:
    """Has every module below (and this one) that holds tensors run on ``execution_device``, where they are moved.

    Modules that have a hook already are left as they are; those of ``preload_module_classes`` are not entered.
    """
    if not hasattr(module, "_hf_hook") and any(True for _ in named_module_tensors(module, recurse=True)):
        hook = AlignDevicesHook(execution_device, skip_keys=skip_keys, tied_params_map=tied_params_map)
        add_hook_to_module(module, hook)
    if _is_any(module, preload_module_classes):
        return
    for child in module.children():
        attach_execution_device_hook(child, execution_device, skip_keys, preload_module_classes, tied_params_map)


def attach_align_device_hook(
    module: nn.Module,
    execution_device: torch.device | None = None,
    offload: bool = False,
    weights_map: Mapping[str, torch.Tensor] | None = None,
    offload_buffers: bool = False,
    module_name: str = "",
    skip_keys: Skip = None,
    preload_module_classes: Sequence[str] | None = None,
    tied_params_map: TiedParams | None = None,
) -> None:
    """Puts an :class:`AlignDevicesHook` on every module below (and this one) that holds tensors of its own.

    ``weights_map`` has full names; ``module_name`` is this module's. Modules of ``preload_module_classes`` are
    brought in as a whole, for forwards that use their children's weights directly.
    """
    whole = offload and _is_any(module, preload_module_classes)
    if whole or _own_tensors(module):
        hook = AlignDevicesHook(
            execution_device,
            offload=offload,
            weights_map=_below(weights_map, module_name),
            offload_buffers=offload_buffers,
            place_submodules=whole,
            skip_keys=skip_keys,
            tied_params_map=tied_params_map,
        )
        add_hook_to_module(module, hook, append=True)
    if whole:
        return
    for name, child in module.named_children():
        attach_align_device_hook(
            child,
            execution_device,
            offload,
            weights_map,
            offload_buffers,
            _join(module_name, name),
            skip_keys,
            preload_module_classes,
            tied_params_map,
        )


def attach_align_device_hook_on_blocks(
    module: nn.Module,
    execution_device: torch.device | dict[str, torch.device] | None = None,
    offload: bool | dict[str, bool] = False,
    weights_map: Mapping[str, torch.Tensor] | None = None,
    offload_buffers: bool = False,
    module_name: str = "",
    skip_keys: Skip = None,
    preload_module_classes: Sequence[str] | None = None,
    tied_params_map: TiedParams | None = None,
) -> None:
    """Puts hooks on a model by block: each name in ``execution_device`` runs there, from where ``offload`` says.

    Single values stand for the whole model. The top module gives its outputs back on the device of its inputs. Names
    of tensors place those of a module whose other parts are placed one by one.
    """
    if not isinstance(execution_device, Mapping) and not isinstance(offload, Mapping):
        if offload:
            attach_align_device_hook(
                module,
                execution_device,
                True,
                weights_map,
                offload_buffers,
                module_name,
                skip_keys,
                preload_module_classes,
                tied_params_map,
            )
            hook = AlignDevicesHook(io_same_device=True, skip_keys=skip_keys)
            add_hook_to_module(module, hook, append=True)
            return
        hook = AlignDevicesHook(
            execution_device,
            io_same_device=True,
            place_submodules=True,
            skip_keys=skip_keys,
            tied_params_map=tied_params_map,
        )
        add_hook_to_module(module, hook)
        return
    devices = execution_device if isinstance(execution_device, Mapping) else dict.fromkeys(offload, execution_device)  # type: ignore[arg-type]
    offloads = offload if isinstance(offload, Mapping) else dict.fromkeys(devices, bool(offload))
    _Blocks(devices, offloads, weights_map, offload_buffers, skip_keys, preload_module_classes, tied_params_map).attach(
        module, module_name
    )


class _Blocks:
    """One walk over a model that hooks it by the maps of devices and offloads."""

    def __init__(
        self,
        devices: Mapping[str, Any],
        offloads: Mapping[str, bool],
        weights_map: Mapping[str, torch.Tensor] | None,
        offload_buffers: bool,
        skip_keys: Skip,
        preload: Sequence[str] | None,
        tied: TiedParams | None,
    ) -> None:
        self.devices, self.offloads = devices, offloads
        self.weights_map, self.offload_buffers = weights_map, offload_buffers
        self.skip_keys, self.preload, self.tied = skip_keys, preload, tied

    def attach(self, module: nn.Module, name: str) -> None:
        if name in self.devices and name in self.offloads:
            self._attach_block(module, name, self.devices[name], self.offloads[name])
            return
        self._attach_own_tensors(module, name)
        for child_name, child in module.named_children():
            self.attach(child, _join(name, child_name))

    def _attach_block(self, module: nn.Module, name: str, device: Any, offload: bool) -> None:
        top = name == ""
        if offload:
            attach_align_device_hook(
                module,
                device,
                True,
                self.weights_map,
                self.offload_buffers,
                name,
                self.skip_keys,
                self.preload,
                self.tied,
            )
            if top or not hasattr(module, "_hf_hook"):
                hook = AlignDevicesHook(device, io_same_device=top, skip_keys=self.skip_keys, tied_params_map=self.tied)
                add_hook_to_module(module, hook, append=True)
        else:
            hook = AlignDevicesHook(
                device,
                offload_buffers=self.offload_buffers,
                io_same_device=top,
                place_submodules=True,
                skip_keys=self.skip_keys,
                tied_params_map=self.tied,
            )
            add_hook_to_module(module, hook)
        attach_execution_device_hook(module, device, self.skip_keys, self.preload, self.tied)

    def _attach_own_tensors(self, module: nn.Module, name: str) -> None:
        """Hooks a module that is not a block itself: for its own tensors, or as the top of the model.

        Own tensors that no map names (buffers that no state dict holds) go to the top's device.
        """
        own = [_join(name, tensor) for tensor, _ in named_module_tensors(module)]
        if not own and name != "":
            return
        named = [full for full in own if full in self.devices]
        offload = any(self.offloads.get(full, False) for full in named)
        device = self.devices[named[0]] if named else self.devices.get("")
        hook = AlignDevicesHook(
            device,
            offload=offload,
            io_same_device=name == "",
            weights_map=_below(self.weights_map, name) if offload else None,
            offload_buffers=self.offload_buffers,
            skip_keys=self.skip_keys,
            tied_params_map=self.tied,
        )
        add_hook_to_module(module, hook, append=True)
