"""The tensors of one module: listed, moved, replaced, and put in place for the time of a call."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from accelerate.devices import get as device_backend
from accelerate.offload.sizes import Dtype, proper_dtype

__all__ = [
    "Device",
    "align_module_device",
    "check_device_same",
    "get_non_persistent_buffers",
    "has_offloaded_params",
    "id_tensor_storage",
    "named_module_tensors",
    "set_module_tensor_to_device",
]

Device = int | str | torch.device
TiedParams = MutableMapping[int, MutableMapping[torch.device, torch.Tensor]]


def check_device_same(first: Device, second: Device) -> bool:
    """Whether two devices are the same one, a device without an index being its kind's current one."""
    one, other = torch.device(first), torch.device(second)
    if one.type != other.type:
        return False
    return one.index == other.index or None in (one.index, other.index) and (one.index or 0) == (other.index or 0)


def named_module_tensors(
    module: nn.Module, include_buffers: bool = True, recurse: bool = False, remove_non_persistent: bool = False
) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters of a module, then its buffers, with names; ``recurse`` goes into its children."""
    yield from module.named_parameters(recurse=recurse)
    if not include_buffers:
        return
    left_out = get_non_persistent_buffers(module, recurse=recurse, fqns=True) if remove_non_persistent else set()
    for name, buffer in module.named_buffers(recurse=recurse):
        if name not in left_out:
            yield name, buffer


def get_non_persistent_buffers(module: nn.Module, recurse: bool = False, fqns: bool = False) -> set[str]:
    """Names of the buffers that a state dict leaves out; ``fqns`` gives those of children in full."""
    if not recurse:
        return set(module._non_persistent_buffers_set)
    found: set[str] = set()
    for path, child in module.named_modules():
        prefix = f"{path}." if path and fqns else ""
        found.update(prefix + name for name in child._non_persistent_buffers_set)
    return found


def id_tensor_storage(tensor: torch.Tensor) -> tuple[torch.device, int, int]:
    """What two tensors have in common when they share memory: device, a number for the storage, its bytes."""
    local = tensor._local_tensor if hasattr(tensor, "_local_tensor") else tensor
    storage = local.untyped_storage()
    # Storages of the meta device have no address; the object behind them is as unique while it lives.
    return local.device, storage._cdata if local.device.type == "meta" else storage.data_ptr(), storage.nbytes()


def has_offloaded_params(module: nn.Module) -> bool:
    """Whether a hook on this very module brings its tensors in for the time of a call."""
    return bool(getattr(getattr(module, "_hf_hook", None), "offload", False))


def _place_of(module: nn.Module, tensor_name: str) -> tuple[nn.Module, str, torch.Tensor | None]:
    path, _, name = tensor_name.rpartition(".")
    try:
        owner = module.get_submodule(path)
    except AttributeError as error:
        raise ValueError(f"{type(module).__name__} has no module {path!r}, asked for by {tensor_name!r}.") from error
    if name not in owner._parameters and name not in owner._buffers:
        raise ValueError(f"{type(owner).__name__} has no parameter or buffer {name!r}, asked for by {tensor_name!r}.")
    return owner, name, owner._parameters[name] if name in owner._parameters else owner._buffers[name]


def _checked(old: torch.Tensor | None, value: torch.Tensor, name: str, dtype: Any) -> torch.Tensor:
    if old is not None and old.shape != value.shape and "4bit" not in type(old).__name__:
        raise ValueError(
            f"{name!r} has shape {tuple(old.shape)} in the model and {tuple(value.shape)} in what it should be set "
            "to. The checkpoint belongs to another model, or the model was built with other sizes."
        )
    if dtype is not None and value.is_floating_point():
        return value.to(proper_dtype(dtype))
    return value.to(old.dtype) if dtype is None and old is not None else value


def _as_parameter(old: nn.Parameter, new: torch.Tensor) -> nn.Parameter:
    """``new`` as the kind of parameter that ``old`` is; quantised kinds carry their settings on the object."""
    if type(old) is nn.Parameter or type(new) is not torch.Tensor or new.device.type == "meta":
        made = nn.Parameter(new, requires_grad=old.requires_grad)
        if type(old) is nn.Parameter:
            vars(made).update(vars(old))
        return made
    return type(old)(new, requires_grad=old.requires_grad, **vars(old))


def set_module_tensor_to_device(
    module: nn.Module,
    tensor_name: str,
    device: Device,
    value: torch.Tensor | None = None,
    dtype: Dtype | None = None,
    fp16_statistics: torch.Tensor | None = None,
    tied_params_map: TiedParams | None = None,
    non_blocking: bool = False,
    clear_cache: bool = True,
) -> None:
    """Moves a parameter or buffer (dotted names reach into children) to ``device``, or replaces it by ``value`` there.

    A value is cast to ``dtype``, else to the dtype it replaces. ``tied_params_map`` (data pointer → device → tensor)
    lets tensors that share memory be copied to a device once. ``clear_cache`` gives the freed memory of an
    accelerator back to it. ``fp16_statistics`` becomes the ``SCB`` of an 8-bit weight.

    Raises:
        ValueError: no such tensor, another shape, or a move off the meta device without a value.
    """
    target = torch.device(device)
    owner, name, old = _place_of(module, tensor_name)
    if old is None and value is None:
        return
    if value is None:
        if old is not None and old.device.type == "meta" and target.type != "meta":
            raise ValueError(
                f"{tensor_name!r} is on the meta device and holds no data, so it cannot move to {target}. Give a value."
            )
        if old is not None and check_device_same(old.device, target):
            return
    source = old if value is None else value
    assert source is not None
    known = _known(tied_params_map, source)
    if known is not None and target in known and known[target].shape == source.shape:
        _store(owner, name, old, known[target])
        return
    with torch.no_grad():
        new = source if value is None else _checked(old, value, tensor_name, dtype)
        new = new.to(target, non_blocking=non_blocking)
        _store(owner, name, old, new)
    placed = owner._parameters.get(name, owner._buffers.get(name))
    if fp16_statistics is not None and placed is not None:
        placed.SCB = fp16_statistics.to(target)  # type: ignore[attr-defined]
    if known is not None and placed is not None and target.type != "meta":
        known[target] = placed
    if clear_cache and old is not None and old.device.type not in ("meta", "cpu", target.type):
        device_backend(old.device.type).memory.empty_cache()


def _known(tied: TiedParams | None, source: torch.Tensor) -> MutableMapping[torch.device, torch.Tensor] | None:
    if tied is None or source.device.type == "meta" or source.numel() == 0:
        return None
    return tied.get(source.data_ptr())


def _store(owner: nn.Module, name: str, old: torch.Tensor | None, new: torch.Tensor) -> None:
    if name in owner._buffers:
        owner._buffers[name] = new
    elif isinstance(new, nn.Parameter) and (old is None or new.requires_grad == old.requires_grad):
        owner._parameters[name] = new
    elif isinstance(old, nn.Parameter):
        owner._parameters[name] = _as_parameter(old, new)
    else:
        owner._parameters[name] = nn.Parameter(new, requires_grad=new.is_floating_point())


@contextmanager
def align_module_device(module: nn.Module, execution_device: torch.device | None = None) -> Iterator[None]:
    """Within the context, this module's own parameters are on ``execution_device`` and hold their data.

    They are moved there and back, changes included; the parameter objects stay the same afterwards. Parameters that a
    hook offloads are brought in by the hook, to ``execution_device`` or its own; changes to those are lost.
    """
    if has_offloaded_params(module):
        hook: Any = module._hf_hook
        before = hook.execution_device
        if execution_device is not None:
            hook.execution_device = execution_device
        try:
            hook.pre_forward(module)
            yield
        finally:
            hook.post_forward(module, None)
            hook.execution_device = before
        return
    originals = dict(module.named_parameters(recurse=False)) if execution_device is not None else {}
    moved: dict[str, torch.Tensor | None] = {}
    try:
        for name in originals:
            set_module_tensor_to_device(module, name, execution_device or "cpu")
            moved[name] = module._parameters[name]
        yield
    finally:
        for name, inside in moved.items():
            _bring_back(module, name, originals[name], inside)


def _bring_back(module: nn.Module, name: str, original: nn.Parameter, inside: torch.Tensor | None) -> None:
    now = module._parameters.get(name)
    if now is original:
        return
    if now is not inside:  # the caller put another parameter there
        set_module_tensor_to_device(module, name, original.device)
        return
    if now is not None and now.device.type != "meta":
        original.data.copy_(now.data)
    module._parameters[name] = original
