"""Walking through nested lists, tuples, named tuples and mappings, keeping the type of every container."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

__all__ = ["honor_type", "is_namedtuple", "is_torch_tensor", "leaves", "rebuild", "recursively_apply"]


def is_torch_tensor(tensor: Any) -> bool:
    """Whether this is a tensor."""
    return isinstance(tensor, torch.Tensor)


def is_namedtuple(data: Any) -> bool:
    """Whether this is an instance of a named tuple type."""
    return isinstance(data, tuple) and hasattr(data, "_asdict") and hasattr(data, "_fields")


def honor_type(obj: Any, generator: Iterable[Any]) -> Any:
    """A sequence of the same type as ``obj`` with the items of ``generator``."""
    if is_namedtuple(obj):
        return type(obj)(*generator)
    return type(obj)(generator)


def rebuild(obj: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping of the same type as ``obj`` that holds ``items``; attributes of the object are kept."""
    kind = type(obj)
    if kind is dict:
        return items
    if not isinstance(obj, MutableMapping):
        return kind(items)  # type: ignore[call-arg]  # a mapping type is built from a mapping
    twin = copy.copy(obj)
    for key, value in items.items():
        twin[key] = value
    return twin


def recursively_apply(
    func: Callable[..., Any],
    data: Any,
    *args: Any,
    test_type: Callable[[Any], bool] = is_torch_tensor,
    error_on_other_type: bool = False,
    **kwargs: Any,
) -> Any:
    """``data`` with ``func(leaf, *args, **kwargs)`` in place of every leaf for which ``test_type`` holds.

    Raises:
        TypeError: ``error_on_other_type``, and a leaf is something else.
    """
    if isinstance(data, (tuple, list)):
        return honor_type(
            data,
            [
                recursively_apply(
                    func, item, *args, test_type=test_type, error_on_other_type=error_on_other_type, **kwargs
                )
                for item in data
            ],
        )
    if isinstance(data, Mapping):
        items = {
            key: recursively_apply(
                func, item, *args, test_type=test_type, error_on_other_type=error_on_other_type, **kwargs
            )
            for key, item in data.items()
        }
        return rebuild(data, items)
    if test_type(data):
        return func(data, *args, **kwargs)
    if error_on_other_type:
        name = getattr(func, "__name__", repr(func))
        test = getattr(test_type, "__name__", repr(test_type))
        raise TypeError(
            f"{name}() got a {type(data).__name__} inside its data. It takes nested lists, tuples and mappings whose "
            f"leaves pass {test}()."
        )
    return data


def leaves(data: Any, test_type: Callable[[Any], bool] = is_torch_tensor) -> Iterator[Any]:
    """The leaves for which ``test_type`` holds, in order."""
    if isinstance(data, (tuple, list)):
        for item in data:
            yield from leaves(item, test_type)
    elif isinstance(data, Mapping):
        for item in data.values():
            yield from leaves(item, test_type)
    elif test_type(data):
        yield data
