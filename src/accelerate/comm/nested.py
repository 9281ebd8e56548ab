"""Nested batches: lists, tuples, named tuples and mappings with tensors at the leaves.

Whatever else sits at a leaf (strings, numbers, None, dataclasses) arrives as it is, and every container keeps its type.
Nothing here communicates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from accelerate.comm.placement import ConvertOutputsToFp32, convert_outputs_to_fp32, convert_to_fp32, send_to_device
from accelerate.comm.structure import (
    honor_type,
    is_namedtuple,
    is_torch_tensor,
    leaves,
    rebuild,
    recursively_apply,
)

__all__ = [
    "ConvertOutputsToFp32",
    "TensorInformation",
    "concatenate",
    "convert_outputs_to_fp32",
    "convert_to_fp32",
    "find_batch_size",
    "find_device",
    "get_data_structure",
    "get_shape",
    "honor_type",
    "ignorant_find_batch_size",
    "initialize_tensors",
    "is_namedtuple",
    "is_tensor_information",
    "is_torch_tensor",
    "leaves",
    "listify",
    "pad_input_tensors",
    "rebuild",
    "recursively_apply",
    "send_to_device",
    "slice_tensors",
]


@dataclass
class TensorInformation:
    """Shape and dtype of a tensor that is somewhere else."""

    shape: torch.Size
    dtype: torch.dtype


def is_tensor_information(tensor_info: Any) -> bool:
    """Whether this describes a tensor that is somewhere else."""
    return isinstance(tensor_info, TensorInformation)


def get_data_structure(data: Any) -> Any:
    """``data`` with a TensorInformation in place of every tensor."""
    return recursively_apply(lambda tensor: TensorInformation(shape=tensor.shape, dtype=tensor.dtype), data)


def get_shape(data: Any) -> Any:
    """``data`` with the shape, as a list, in place of every tensor."""
    return recursively_apply(lambda tensor: list(tensor.shape), data)


def initialize_tensors(data_structure: Any) -> Any:
    """The reverse of :func:`get_data_structure`: uninitialised CPU tensors of the described shapes and dtypes."""
    return recursively_apply(
        lambda info: torch.empty(info.shape, dtype=info.dtype), data_structure, test_type=is_tensor_information
    )


def find_batch_size(data: Any) -> int:
    """The first dimension of the first tensor that has one.

    Raises:
        ValueError: ``data`` is empty.
        TypeError: no tensor with a dimension is in it.
    """
    if isinstance(data, (tuple, list, Mapping)) and len(data) == 0:
        raise ValueError(f"An empty {type(data).__name__} has no batch size.")
    found = ignorant_find_batch_size(data)
    if found is None:
        raise TypeError(
            f"The batch size is the first dimension of the first tensor, but this {type(data).__name__} holds no "
            "tensor with a dimension."
        )
    return found


def ignorant_find_batch_size(data: Any) -> int | None:
    """As :func:`find_batch_size`, but None where there is no batch size."""
    for tensor in leaves(data):
        if tensor.ndim > 0:
            return int(tensor.shape[0])
    return None


def find_device(data: Any) -> torch.device | None:
    """The device of the first tensor, or None where there is none."""
    tensor = next(leaves(data), None)
    return None if tensor is None else tensor.device


def listify(data: Any) -> Any:
    """``data`` with Python numbers and lists in place of tensors."""

    def convert(tensor: torch.Tensor) -> Any:
        tensor = tensor.detach().cpu()
        return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).tolist()

    return recursively_apply(convert, data)


def concatenate(data: Any, dim: int = 0) -> Any:
    """One structure from a list of like structures: tensors are joined along ``dim``, lists without tensors are
    chained, and a leaf that is the same in all of them is kept.

    Raises:
        TypeError: a leaf is no tensor and differs.
    """
    first = data[0]
    if isinstance(first, (tuple, list)):
        if first and next(leaves(data), None) is None and not any(isinstance(item, Mapping) for item in first):
            return honor_type(first, [item for part in data for item in part]) if not is_namedtuple(first) else first
        return honor_type(first, [concatenate([part[i] for part in data], dim=dim) for i in range(len(first))])
    if isinstance(first, Mapping):
        return rebuild(first, {key: concatenate([part[key] for part in data], dim=dim) for key in first})
    if isinstance(first, torch.Tensor):
        return torch.cat(data, dim=dim)
    if all(part is first or part == first for part in data):
        return first
    raise TypeError(
        f"concatenate() joins tensors; a {type(first).__name__} that differs between the structures ({first!r}, …) "
        "cannot be joined. Put such values into a list, which is chained."
    )


def slice_tensors(
    data: Any, tensor_slice: slice, process_index: int | None = None, num_processes: int | None = None
) -> Any:
    """``data`` with ``tensor[tensor_slice]`` in place of every tensor. The two last arguments change nothing."""

    def take(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[tensor_slice] if tensor.ndim > 0 else tensor

    return recursively_apply(take, data)


def pad_input_tensors(tensor: Any, batch_size: int, num_processes: int, dim: int = 0) -> Any:
    """``tensor`` (any structure) with zeros appended along ``dim`` to every tensor that has ``batch_size`` entries
    there, so that ``num_processes`` divides them."""
    missing = -batch_size % num_processes

    def pad(item: torch.Tensor) -> torch.Tensor:
        if not missing or item.ndim <= dim or item.shape[dim] != batch_size:
            return item
        shape = list(item.shape)
        shape[dim] = missing
        return torch.cat([item, item.new_zeros(shape)], dim=dim)

    return recursively_apply(pad, tensor, error_on_other_type=True)
