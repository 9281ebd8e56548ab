"""Models spread over devices, main memory and disk, and the hooks that make them run as one."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accelerate.offload import speaker
from accelerate.offload.align import (
    AlignDevicesHook,
    attach_align_device_hook,
    attach_align_device_hook_on_blocks,
)
from accelerate.offload.budget import HOST
from accelerate.offload.device_map import check_device_map
from accelerate.offload.disk import (
    INDEX_NAME,
    OffloadedWeightsLoader,
    PathLike,
    extract_submodules_state_dict,
    offload_state_dict,
)
from accelerate.offload.hooks import ADDED_ATTRIBUTES, add_hook_to_module
from accelerate.offload.sizes import parts
from accelerate.offload.tensors import Device
from accelerate.offload.tied import device_of_name, find_tied_parameters, retie_parameters

__all__ = ["cpu_offload", "disk_offload", "dispatch_model", "public"]


def public(name: str, own: Any) -> Any:
    """A function of this package, or what a library put under its public name in ``accelerate.big_modeling``."""
    return getattr(sys.modules.get("accelerate.big_modeling"), name, own)


def _first_device(model: nn.Module) -> torch.device:
    first = next((p.device for p in model.parameters() if p.device.type != "meta"), None)
    return first or torch.device("cpu")


def cpu_offload(
    model: nn.Module,
    execution_device: torch.device | None = None,
    offload_buffers: bool = False,
    state_dict: dict[str, torch.Tensor] | None = None,
    preload_module_classes: Sequence[str] | None = None,
) -> nn.Module:
    """Keeps a model's parameters in main memory; each module's come to ``execution_device`` while it runs.

    ``execution_device`` defaults to where the model is, ``state_dict`` to a copy in main memory. Buffers stay on the
    device unless ``offload_buffers``. Modules of ``preload_module_classes`` come as a whole. Meant for inference.
    """
    device = execution_device if execution_device is not None else _first_device(model)
    if state_dict is None:
        state_dict = {name: tensor.to("cpu") for name, tensor in model.state_dict().items()}
    return _offload_all(model, device, state_dict, offload_buffers, preload_module_classes)


def disk_offload(
    model: nn.Module,
    offload_dir: PathLike,
    execution_device: torch.device | None = None,
    offload_buffers: bool = False,
    preload_module_classes: Sequence[str] | None = None,
) -> nn.Module:
    """Keeps a model's parameters in a folder; each module's come to ``execution_device`` while it runs.

    A folder whose index has all of a model that holds no data itself is used as it is; otherwise it is written.
    Other arguments are as for :func:`cpu_offload`.
    """
    device = execution_device if execution_device is not None else _first_device(model)
    _write_missing(model.state_dict(), offload_dir)
    weights = OffloadedWeightsLoader(save_folder=offload_dir)
    return _offload_all(model, device, weights, offload_buffers, preload_module_classes)


def _offload_all(
    model: nn.Module,
    device: torch.device,
    weights: Mapping[str, torch.Tensor],
    offload_buffers: bool,
    preload: Sequence[str] | None,
) -> nn.Module:
    add_hook_to_module(model, AlignDevicesHook(io_same_device=True), append=True)
    attach_align_device_hook(
        model,
        execution_device=device,
        offload=True,
        weights_map=weights,
        offload_buffers=offload_buffers,
        preload_module_classes=preload,
    )
    return model


def _write_missing(state: Mapping[str, torch.Tensor], folder: PathLike) -> None:
    """Writes the tensors that hold data; for the others the folder's index must have an entry.

    An index that is there already may be of another model or an older state, so it is not taken for one that has data.
    """
    there = {name: tensor for name, tensor in state.items() if tensor.device.type != "meta"}
    offload_state_dict(folder, there)
    if len(there) == len(state):
        return
    index = Path(folder) / INDEX_NAME
    known: Any = OffloadedWeightsLoader(save_folder=folder).index if index.is_file() else {}
    missing = [name for name in state if name not in there and name not in known]
    if missing:
        raise ValueError(
            f"These tensors are on the meta device and {str(index)!r} does not list them either: {', '.join(missing)}. "
            "Load the checkpoint first."
        )


def dispatch_model(
    model: nn.Module,
    device_map: Mapping[str, Device],
    main_device: torch.device | None = None,
    state_dict: dict[str, torch.Tensor] | None = None,
    offload_dir: PathLike | None = None,
    offload_index: dict[str, Any] | None = None,
    offload_buffers: bool = False,
    skip_keys: str | list[str] | None = None,
    preload_module_classes: Sequence[str] | None = None,
    force_hooks: bool = False,
) -> nn.Module:
    """Places each part of a model as ``device_map`` says and hooks it so that it runs from inputs on any device.

    Parts on "cpu" (beside accelerators) and "disk" run on ``main_device``, by default the first accelerator.
    ``state_dict`` has the weights for "cpu", ``offload_dir`` or ``offload_index`` those for "disk" where the model
    does not. A map of one device moves the model and hooks nothing, unless ``force_hooks``. The map is kept as
    ``hf_device_map``. Other arguments are as for :func:`cpu_offload` and :class:`AlignDevicesHook`.

    Raises:
        ValueError: the map leaves parameters out, or there is no folder for "disk".
    """
    public("check_device_map", check_device_map)(model, device_map)
    named, device_map = device_map, _disjoint(model, device_map)
    places = set(device_map.values())
    if len(places) == 1 and "disk" not in places and not force_hooks:
        _move_whole(model, next(iter(places)))
    else:
        if main_device is None:
            main_device = next((place for place in device_map.values() if place not in HOST), "cpu")  # type: ignore[assignment]
        weights = _offloaded_weights(model, device_map, main_device, state_dict, offload_dir, offload_index)
        _hook(model, device_map, main_device, weights, offload_buffers, skip_keys, preload_module_classes)
        _refuse_moves(model)
    model.hf_device_map = dict(named)  # type: ignore[assignment]
    return model


def _disjoint(model: nn.Module, device_map: Mapping[str, Device]) -> dict[str, Device]:
    """The map with every entry that others are inside of replaced by entries for its remaining parts."""
    result: dict[str, Device] = {}
    for name, place in device_map.items():
        prefix = f"{name}." if name else ""
        if any(other != name and other.startswith(prefix) for other in device_map):
            inside = {prefix + part: place for part, _ in parts(model.get_submodule(name))}
            mine = {part: place for part in inside if part not in device_map}
            deeper = {key: value for key, value in device_map.items() if key != name and key.startswith(prefix)}
            result.update(_disjoint(model, {**mine, **deeper}))
        elif name not in result:
            result[name] = place
    return result


def _move_whole(model: nn.Module, device: Device) -> None:
    empty = [name for name, parameter in model.named_parameters() if parameter.device.type == "meta"]
    if empty and torch.device(device).type != "meta":
        raise ValueError(
            f"{len(empty)} parameters hold no data (the first is {empty[0]!r}), so the model cannot move to "
            f"{device!r}. Load the checkpoint first."
        )
    if not getattr(model, "is_quantized", False):  # quantised layers are placed where they were made
        model.to(device)


def _offloaded_weights(
    model: nn.Module,
    device_map: Mapping[str, Device],
    main_device: Device | None,
    state_dict: dict[str, torch.Tensor] | None,
    offload_dir: PathLike | None,
    offload_index: dict[str, Any] | None,
) -> Mapping[str, torch.Tensor] | None:
    waiting = [name for name, place in device_map.items() if place == "cpu" and main_device != "cpu"]
    on_disk = [name for name, place in device_map.items() if place == "disk"]
    if on_disk and offload_dir is None and offload_index is None:
        raise ValueError(
            f"device_map puts these modules on disk, and there is no folder for them: {', '.join(on_disk)}. "
            "Pass offload_dir."
        )
    if not waiting and not on_disk and state_dict is None:
        return None
    own: dict[str, torch.Tensor] = model.state_dict()
    if state_dict is None and waiting:
        state_dict = _of_modules(own, waiting)
    if on_disk and offload_index is None and offload_dir is not None:
        _write_missing(_of_modules(own, on_disk), offload_dir)
    if not on_disk:
        return state_dict
    return OffloadedWeightsLoader(state_dict=state_dict, save_folder=offload_dir, index=offload_index)


def _of_modules(state: dict[str, torch.Tensor], modules: list[str]) -> dict[str, torch.Tensor]:
    return state if "" in modules else extract_submodules_state_dict(state, modules)


def _hook(
    model: nn.Module,
    device_map: Mapping[str, Device],
    main_device: Device | None,
    weights: Mapping[str, torch.Tensor] | None,
    offload_buffers: bool,
    skip_keys: str | list[str] | None,
    preload: Sequence[str] | None,
) -> None:
    away = {"disk"} if main_device in ("cpu", "mps") else {"cpu", "disk"}
    runs_on: dict[str, Any] = {name: main_device if place in away else place for name, place in device_map.items()}
    runs_on.setdefault("", main_device)
    offload = {name: place in away for name, place in device_map.items()}
    tied = find_tied_parameters(model)
    pointers = {
        parameter.data_ptr(): dict[torch.device, torch.Tensor]()
        for group in tied
        if (parameter := model.get_parameter(group[0])).device.type != "meta"
    }
    public("attach_align_device_hook_on_blocks", attach_align_device_hook_on_blocks)(
        model,
        execution_device=runs_on,
        offload=offload,
        offload_buffers=offload_buffers,
        weights_map=weights,
        skip_keys=skip_keys,
        preload_module_classes=preload,
        tied_params_map=pointers or None,
    )
    waiting = sorted({str(place) for place in device_map.values() if place in away})
    if waiting:
        speaker.info(f"Parameters that wait on {' and '.join(waiting)} are on the meta device between calls.")
    for group in tied:
        same: dict[str, list[str]] = {}
        for name in group:
            same.setdefault(str(device_of_name(name, runs_on)), []).append(name)
        retie_parameters(model, [names for names in same.values() if len(names) > 1])


def _refuse_moves(model: nn.Module) -> None:
    """Has ``model.to`` and its kin say that hooks place this model; with the hooks, this comes off."""
    for name in ADDED_ATTRIBUTES:
        method = getattr(type(model), name, None)
        if method is not None:
            model.__dict__[name] = functools.update_wrapper(functools.partial(_moved, model, name), method)


def _moved(model: nn.Module, name: str, *args: Any, **kwargs: Any) -> Any:
    if any(parameter.device.type == "meta" for parameter in model.parameters()):
        raise RuntimeError(
            f"`{name}()` was called on a model of which parts wait in main memory or on disk. Its hooks place it; take "
            "them off with `remove_hook_from_submodules(model)` first."
        )
    speaker.warning_once(f"`{name}()` was called on a model whose parts are placed by hooks; they move its inputs too.")
    return getattr(type(model), name)(model, *args, **kwargs)
