"""Moving nested batches to a device, and their numbers to float32. Nothing here communicates."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from functools import update_wrapper
from typing import Any, TypeAlias

import torch

from accelerate.comm.structure import honor_type, leaves, rebuild, recursively_apply

__all__ = ["ConvertOutputsToFp32", "convert_outputs_to_fp32", "convert_to_fp32", "send_to_device"]

_PLAIN = frozenset({str, int, float, bool, bytes, type(None), complex})
_NO_INDEX = frozenset({"cpu", "mps", "meta", "hpu", "xla"})
_RESOLVED: dict[Any, torch.device] = {}
_Tensor = torch.Tensor
_Skip: TypeAlias = "frozenset[Any] | tuple[()]"


def send_to_device(
    tensor: Any,
    device: torch.device | str | int,
    non_blocking: bool = False,
    skip_keys: str | list[str] | None = None,
) -> Any:
    """``tensor`` (any structure) with its tensors on ``device``; the very same object where none has to move.

    Tensors move, and so do objects with a ``to`` of their own (a BatchEncoding, a PackedSequence). Everything else
    arrives as it is. Values under ``skip_keys`` stay where they are, at any depth.
    """
    target = _resolve(device)
    skip: _Skip = ()
    if skip_keys:
        skip = frozenset((skip_keys,) if isinstance(skip_keys, str) else skip_keys)
    return _send(tensor, target, non_blocking, skip)


def _resolve(device: torch.device | str | int) -> torch.device:
    """``device`` with its number, so that it can be compared with a tensor's."""
    known = _RESOLVED.get(device)
    if known is not None:
        return known
    target = device if isinstance(device, torch.device) else torch.device(device)
    if target.index is None and target.type not in _NO_INDEX:
        current = getattr(getattr(torch, target.type, None), "current_device", None)
        return target if current is None else torch.device(target.type, current())
    _RESOLVED[device] = target
    return target


def _send(data: Any, target: torch.device, non_blocking: bool, skip: _Skip) -> Any:
    kind = type(data)
    if kind is _Tensor:
        return data if data.device == target else data.to(target, non_blocking=non_blocking)
    if kind is dict:
        return _send_items(data, target, non_blocking, skip)
    if kind is list or kind is tuple:
        return _send_sequence(data, target, non_blocking, skip)
    return data if kind in _PLAIN else _send_other(data, target, non_blocking, skip)


def _send_sequence(data: Any, target: torch.device, non_blocking: bool, skip: _Skip) -> Any:
    """A list or tuple. This and the next function look at the common leaves themselves: a call for each costs more."""
    changed: dict[int, Any] = {}
    for place, item in enumerate(data):
        kind = type(item)
        if kind in _PLAIN or (kind is _Tensor and item.device == target):
            continue
        new = _send(item, target, non_blocking, skip)
        if new is not item:
            changed[place] = new
    if not changed:
        return data
    return honor_type(data, [changed.get(place, item) for place, item in enumerate(data)])


def _send_items(data: Mapping[Any, Any], target: torch.device, non_blocking: bool, skip: _Skip) -> Any:
    changed: dict[Any, Any] = {}
    for key, item in data.items():
        kind = type(item)
        if kind in _PLAIN or (kind is _Tensor and item.device == target) or (skip and key in skip):
            continue
        new = _send(item, target, non_blocking, skip)
        if new is not item:
            changed[key] = new
    if not changed:
        return data
    if type(data) is dict:
        return {**data, **changed}
    if isinstance(data, MutableMapping):
        twin = copy.copy(data)
        for key, item in changed.items():
            twin[key] = item
        return twin
    return rebuild(data, {**data, **changed})


def _send_other(data: Any, target: torch.device, non_blocking: bool, skip: _Skip) -> Any:
    """What is none of the plain types: subclasses, and objects that know how to move themselves."""
    if isinstance(data, torch.Tensor):
        return data if data.device == target else data.to(target, non_blocking=non_blocking)
    if isinstance(data, Mapping) and (skip or not hasattr(data, "to")):
        return _send_items(data, target, non_blocking, skip)
    if hasattr(data, "to") and callable(data.to):
        if isinstance(data, Mapping) and _at_home(data, target):
            return data
        return _move_itself(data, target, non_blocking)
    if isinstance(data, (list, tuple)):
        return _send_sequence(data, target, non_blocking, skip)
    return data


def _at_home(data: Mapping[Any, Any], target: torch.device) -> bool:
    return all(tensor.device == target for tensor in leaves(data))


def _move_itself(data: Any, target: torch.device, non_blocking: bool) -> Any:
    try:
        return data.to(target, non_blocking=non_blocking)
    except TypeError:  # an object whose `to` takes the device alone
        return data.to(target)


def _to_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float()


def _is_half(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.dtype in (torch.float16, torch.bfloat16)


def convert_to_fp32(tensor: Any) -> Any:
    """``tensor`` (any structure) with its float16 and bfloat16 tensors as float32."""
    return recursively_apply(_to_float32, tensor, test_type=_is_half)


class ConvertOutputsToFp32:
    """A callable that runs ``model_forward`` and returns its outputs in float32. Pickles where that does."""

    def __init__(self, model_forward: Callable[..., Any]) -> None:
        self.model_forward = model_forward
        update_wrapper(self, model_forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return convert_to_fp32(self.model_forward(*args, **kwargs))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model_forward,)


def convert_outputs_to_fp32(model_forward: Callable[..., Any]) -> Callable[..., Any]:
    """``model_forward`` made to return float32 where it returned float16 or bfloat16."""
    return ConvertOutputsToFp32(model_forward)
