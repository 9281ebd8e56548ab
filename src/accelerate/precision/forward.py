"""Makes a model's forward run under autocast, in a way that copies, pickles, compiles and can be taken off again."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from accelerate.comm.structure import rebuild

__all__ = ["LARGE_OUTPUT_ELEMENTS", "install", "installed", "outputs_to_float32", "remove"]

LARGE_OUTPUT_ELEMENTS = 1 << 24

_BEFORE = "_accelerate_forward_before"
_MARK = "_accelerate_precision"
_LOW = (torch.float16, torch.bfloat16)


def outputs_to_float32(outputs: Any, policy: str = "auto") -> Any:
    """Half-precision tensors of a model's outputs as float32; containers keep their type and everything else is kept.

    Under ``policy`` "auto", an output structure that carries its own ``loss`` keeps tensors of more than
    :data:`LARGE_OUTPUT_ELEMENTS` elements as they are: the loss was computed inside, so converting the logits would
    only double their memory. "float32" converts all, "unchanged" none.
    """
    if policy == "unchanged":
        return outputs
    if isinstance(outputs, torch.Tensor):
        return outputs.float() if outputs.dtype in _LOW else outputs
    limit = None
    if policy == "auto":
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
        limit = None if loss is None else LARGE_OUTPUT_ELEMENTS
    return _convert(outputs, limit)


def _convert(value: Any, limit: int | None) -> Any:
    if isinstance(value, torch.Tensor):
        low = value.dtype in _LOW and (limit is None or value.numel() <= limit)
        return value.float() if low else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_convert(item, limit) for item in value))
    if type(value) in (list, tuple):
        return type(value)(_convert(item, limit) for item in value)
    if isinstance(value, Mapping):
        converted = {key: _convert(item, limit) for key, item in value.items()}
        if type(value) is dict:
            return converted
        changed = {key: item for key, item in converted.items() if item is not value[key]}
        return _rebuilt(value, converted) if changed else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _with_fields(value, limit)
    return value


def _rebuilt(value: Mapping[str, Any], converted: dict[str, Any]) -> Any:
    """A mapping of the same type; ModelOutput-like dataclasses take their fields as keywords."""
    if not dataclasses.is_dataclass(value):
        return rebuild(value, converted)
    try:
        return type(value)(**converted)
    except TypeError:
        return rebuild(value, converted)


def _with_fields(value: Any, limit: int | None) -> Any:
    """A dataclass of the same type; the object itself where no field changes."""
    fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    converted = {name: _convert(item, limit) for name, item in fields.items()}
    changed = {name: item for name, item in converted.items() if item is not fields[name]}
    if not changed:
        return value
    twin = copy.copy(value)
    for name, item in changed.items():
        object.__setattr__(twin, name, item)  # a frozen one, too
    return twin


def install(
    model: torch.nn.Module, context: Callable[[], AbstractContextManager[Any]], policy: str = "auto"
) -> torch.nn.Module:
    """Runs ``model.forward`` inside ``context()`` and converts its outputs; idempotent.

    The replacement is a bound method named ``forward``: a deep copy binds it to the copy, and unpickling resolves it
    by name, so neither drags the original model along.
    """
    if installed(model):
        return model
    before = model.__dict__.get("forward")
    signature_of = before if before is not None else type(model).forward

    @functools.wraps(signature_of)
    def forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        inner = self.__dict__.get(_BEFORE)
        with context():
            outputs = inner(*args, **kwargs) if inner is not None else type(self).forward(self, *args, **kwargs)
        return outputs_to_float32(outputs, policy)

    forward.__name__ = "forward"
    if before is not None:
        model.__dict__[_BEFORE] = before
        # `before` is bound already, so as __wrapped__ its first real parameter would be taken for self.
        forward.__dict__.pop("__wrapped__", None)
        bound = inspect.signature(before)
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        rest = [p.replace(kind=p.KEYWORD_ONLY) if p.kind is p.POSITIONAL_ONLY else p for p in bound.parameters.values()]
        forward.__signature__ = bound.replace(parameters=[own, *rest])  # type: ignore[attr-defined]
    model.__dict__[_MARK] = True
    model.__dict__["forward"] = types.MethodType(forward, model)
    return model


def installed(model: torch.nn.Module) -> bool:
    """Whether ``install`` was applied to this very module."""
    return bool(model.__dict__.get(_MARK, False))


def remove(model: torch.nn.Module) -> torch.nn.Module:
    """Gives the model its own forward back; does nothing where ``install`` was not applied."""
    if not installed(model):
        return model
    before = model.__dict__.pop(_BEFORE, None)
    del model.__dict__[_MARK]
    if before is not None:
        model.__dict__["forward"] = before
    else:
        model.__dict__.pop("forward", None)
    return model
