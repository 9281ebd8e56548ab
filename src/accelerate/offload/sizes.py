"""How many bytes a dtype, a module and its largest part take, and bytes as people write them."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from accelerate.config.enums import CustomDtype

__all__ = [
    "calculate_maximum_sizes",
    "compute_module_sizes",
    "compute_module_total_buffer_size",
    "convert_bytes",
    "convert_file_size_to_int",
    "dtype_byte_size",
    "get_max_layer_size",
    "named_tensors",
    "parts",
    "proper_dtype",
    "tensor_bytes",
]

Dtype = str | torch.dtype | CustomDtype

_CUSTOM_BYTES = {CustomDtype.FP8: 1.0, CustomDtype.INT4: 0.5, CustomDtype.INT2: 0.25}
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_SIZE = re.compile(r"([0-9]*\.?[0-9]+(?:[eE][+]?[0-9]+)?)\s*([KMGTP])(i?)(B)", re.IGNORECASE)


def proper_dtype(dtype: Dtype) -> Any:
    """The dtype that a name such as "float16" or "torch.float16" stands for; anything else as it is.

    Raises:
        ValueError: torch has no dtype of that name.
    """
    if not isinstance(dtype, str):
        return dtype
    found = getattr(torch, dtype.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"dtype={dtype!r} is not a torch dtype. Use for example 'float16' or torch.bfloat16.")
    return found


def dtype_byte_size(dtype: torch.dtype | CustomDtype) -> float:
    """Bytes of one element; a fraction for the types of :class:`CustomDtype` that are smaller than a byte."""
    if isinstance(dtype, CustomDtype):
        return _CUSTOM_BYTES[dtype]
    return dtype.itemsize


def tensor_bytes(tensor: torch.Tensor, dtype: Dtype | None = None) -> int:
    """Bytes of a tensor; with ``dtype``, after a floating point tensor was brought down to it (never up)."""
    size = dtype_byte_size(tensor.dtype)
    if dtype is not None and (tensor.is_floating_point() or tensor.is_complex()):
        size = min(size, dtype_byte_size(proper_dtype(dtype)))
    return math.ceil(tensor.numel() * size)


def named_tensors(model: nn.Module, buffers_only: bool = False) -> Iterable[tuple[str, torch.Tensor]]:
    """Every parameter and buffer of a model under its full name, shared ones once."""
    if not buffers_only:
        yield from model.named_parameters()
    yield from model.named_buffers()


def parts(module: nn.Module) -> Iterable[tuple[str, nn.Module | torch.Tensor]]:
    """What a module falls into when it is split: its own tensors, then its children, each with its relative name."""
    yield from module.named_parameters(recurse=False)
    yield from module.named_buffers(recurse=False)
    yield from module.named_children()


def compute_module_sizes(
    model: nn.Module,
    dtype: Dtype | None = None,
    special_dtypes: Mapping[str, Dtype] | None = None,
    buffers_only: bool = False,
) -> dict[str, int]:
    """Bytes under every name of the model: tensors, modules, and "" for the whole. Shared tensors count once.

    ``dtype`` is what floating point tensors will be brought down to; ``special_dtypes`` says otherwise for single
    tensors. Missing names count zero.
    """
    sizes: dict[str, int] = defaultdict(int)
    for name, tensor in named_tensors(model, buffers_only):
        if special_dtypes is not None and name in special_dtypes:
            special = proper_dtype(special_dtypes[name])
            size = math.ceil(tensor.numel() * dtype_byte_size(special))
        else:
            size = tensor_bytes(tensor, dtype)
        sizes[""] += size
        end = name.find(".")
        while end != -1:
            sizes[name[:end]] += size
            end = name.find(".", end + 1)
        sizes[name] += size
    return sizes


def compute_module_total_buffer_size(
    model: nn.Module, dtype: Dtype | None = None, special_dtypes: Mapping[str, Dtype] | None = None
) -> int:
    """Bytes of all buffers of a model."""
    return compute_module_sizes(model, dtype, special_dtypes, buffers_only=True)[""]


def get_max_layer_size(
    modules: Sequence[tuple[str, nn.Module | torch.Tensor]],
    module_sizes: Mapping[str, int],
    no_split_module_classes: Sequence[str] | None,
) -> tuple[int, list[str]]:
    """The bytes of the largest part that cannot be split further, and the names of all parts of that size.

    A part is a module without children, a module of a class in ``no_split_module_classes``, or a tensor. Names in
    ``modules`` are full names.
    """
    whole = set(no_split_module_classes or ())
    largest, names = 0, list[str]()
    queue = list(reversed(modules))
    while queue:
        name, module = queue.pop()
        if not isinstance(module, torch.Tensor) and type(module).__name__ not in whole and any(module.children()):
            prefix = f"{name}." if name else ""
            queue.extend((prefix + child, part) for child, part in reversed(list(parts(module))))
            continue
        size = module_sizes.get(name, 0)
        if size > largest:
            largest, names = size, [name]
        elif size and size == largest:
            names.append(name)
    return largest, names


def calculate_maximum_sizes(model: nn.Module) -> tuple[int, tuple[int, list[str]]]:
    """Bytes of the model, and of its largest unsplittable part with its names, as loaded."""
    sizes = compute_module_sizes(model)
    whole = list(getattr(model, "_no_split_modules", None) or [])
    return sizes[""], get_max_layer_size(list(model.named_children()), sizes, whole)


def convert_file_size_to_int(size: float | str) -> int:
    """The bytes in "10GB" (powers of 1000), "10GiB" (powers of 1024) or "80Gb" (bits); a number stays what it is.

    Raises:
        ValueError: the text is not a size.
    """
    if isinstance(size, (int, float)):
        return int(size)
    match = _SIZE.fullmatch(size.strip()) if isinstance(size, str) else None
    if match is None:
        raise ValueError(f"{size!r} is not a size. Give bytes as a number, or a text like '5.5GB' or '800MiB'.")
    number, power, binary, unit = match.groups()
    value = int(float(number) * (1024 if binary else 1000) ** _POWERS[power.upper()])
    return value // 8 if unit == "b" and not binary else value


def convert_bytes(size: float) -> str:
    """Bytes as a person reads them: "1.46 KB", "7.0 GB" (powers of 1024)."""
    if size < 1024:
        return f"{round(size, 2)} bytes"
    for unit in ("KB", "MB", "GB", "TB"):
        size /= 1024
        if size < 1024:
            return f"{round(size, 2)} {unit}"
    return f"{round(size / 1024, 2)} PB"
