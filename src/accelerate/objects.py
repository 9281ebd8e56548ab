"""Names, attributes and nested dictionaries of arbitrary Python objects."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from functools import reduce
from typing import Any

__all__ = ["get_pretty_name", "merge_dicts", "recursive_getattr"]


def get_pretty_name(obj: Any) -> str:
    """What a person would call an object: the name of a class or function, the class's name of anything else."""
    named = obj if hasattr(obj, "__qualname__") or hasattr(obj, "__name__") else type(obj)
    qualified = getattr(named, "__qualname__", "")
    return str(getattr(named, "__name__", "") if not qualified or "<" in qualified else qualified) or str(obj)


def merge_dicts(source: Mapping[str, Any], destination: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """``destination`` after everything in ``source`` was put into it; dictionaries inside are merged, not replaced."""
    for key, value in source.items():
        there = destination.get(key)
        if isinstance(value, Mapping):
            destination[key] = merge_dicts(value, there if isinstance(there, MutableMapping) else {})
        else:
            destination[key] = value
    return destination


def recursive_getattr(obj: Any, attr: str) -> Any:
    """The attribute at a dotted path: ``recursive_getattr(model, "layers.0.weight")``."""
    return reduce(getattr, attr.split("."), obj)
