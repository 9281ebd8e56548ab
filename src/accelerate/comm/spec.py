"""A nested structure apart from its tensors: to compare over the ranks, to put into words, to fill again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import torch

from accelerate.comm.structure import honor_type, rebuild

__all__ = ["Spec", "flatten", "restore", "words"]

Spec: TypeAlias = Any
"""A hashable description: 0 for a tensor, None for None, else a tuple with the kind of container first."""


def flatten(data: Any, found: list[torch.Tensor]) -> Spec:
    """The structure of ``data``; its tensors are appended to ``found`` in order.

    Raises:
        TypeError: a leaf is neither a tensor nor None.
    """
    if isinstance(data, torch.Tensor):
        found.append(data)
        return 0
    if isinstance(data, (list, tuple)):
        return ("sequence", *[flatten(item, found) for item in data])
    if isinstance(data, Mapping):
        return ("mapping", *[(key, flatten(item, found)) for key, item in data.items()])
    if data is None:
        return None
    raise TypeError(
        f"Only tensors in nested lists, tuples and mappings travel between processes here, and a {type(data).__name__} "
        "is among them. Use gather_object() or broadcast_object_list() for other objects."
    )


def restore(data: Any, values: Iterator[Any]) -> Any:
    """``data`` with the next of ``values`` in place of each tensor."""
    if isinstance(data, torch.Tensor):
        return next(values)
    if isinstance(data, (list, tuple)):
        return honor_type(data, [restore(item, values) for item in data])
    if isinstance(data, Mapping):
        return rebuild(data, {key: restore(item, values) for key, item in data.items()})
    return data


def words(data: Any) -> str:
    """``data`` for an error message: ``{'x': float32[4, 10]}``."""
    if isinstance(data, torch.Tensor):
        kind = str(data.dtype).removeprefix("torch.")
        return f"{kind}[nested]" if data.is_nested else f"{kind}{list(data.shape)}"
    if isinstance(data, (list, tuple)):
        inside = ", ".join(words(item) for item in data)
        return f"[{inside}]" if isinstance(data, list) else f"({inside})"
    if isinstance(data, Mapping):
        return "{" + ", ".join(f"{key!r}: {words(item)}" for key, item in data.items()) + "}"
    return "None" if data is None else f"a {type(data).__name__}"
