"""Tensors on disk as safetensors, written straight from memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from accelerate.errors import CheckpointError

__all__ = ["ByteSink", "bytes_of", "read_header", "read_tensors", "write_tensors"]

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.bool: "BOOL",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


class ByteSink(Protocol):
    """What bytes are written to."""

    def write(self, data: Any) -> int: ...


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The elements of a tensor as bytes, in order; without a copy where it is contiguous and on the CPU."""
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def write_tensors(sink: ByteSink, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file. Views that share memory are each written whole.

    Raises:
        CheckpointError: a tensor is of a type that the format does not know, or holds no data (a meta tensor).
    """
    # By size of element, so that every tensor starts at a multiple of it.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    end = 0
    for name in order:
        tensor = tensors[name]
        if tensor.dtype not in _DTYPES or tensor.layout is not torch.strided or tensor.device.type == "meta":
            raise CheckpointError(
                f"Tensor {name!r} ({tensor.dtype}, {tensor.layout}, on {tensor.device}) cannot be written as "
                "safetensors, which holds dense tensors with data, of torch's usual types. "
                "Pass safe_serialization=False, or leave it out with register_save_state_pre_hook."
            )
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    sink.write(len(text).to_bytes(8, "little") + text)
    for name in order:
        if tensors[name].numel():
            sink.write(bytes_of(tensors[name]))


def read_header(path: Path) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """(shape by name, metadata) of a safetensors file, no tensor read.

    Raises:
        CheckpointError: it is no safetensors file.
    """
    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > path.stat().st_size:
                raise ValueError(f"header of {size} bytes in a shorter file")
            header = json.loads(file.read(size))
        metadata = header.pop("__metadata__", None) or {}
        return {name: tuple(entry["shape"]) for name, entry in header.items()}, metadata
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{path} is not a safetensors file: {error}") from error


def read_tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of every tensor; they are views of the file, read when they are used.

    Raises:
        CheckpointError: it is no safetensors file, or is cut short.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            for name in file.keys():  # noqa: SIM118  # not a dictionary
                yield name, file.get_tensor(name)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a whole safetensors file: {error}") from error
