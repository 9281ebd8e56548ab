"""Bytes of dtypes, modules and texts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from accelerate.config.enums import CustomDtype
from accelerate.offload.sizes import (
    calculate_maximum_sizes,
    compute_module_sizes,
    compute_module_total_buffer_size,
    convert_bytes,
    convert_file_size_to_int,
    dtype_byte_size,
    get_max_layer_size,
    proper_dtype,
)
from unit.offload.models import language, net


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (torch.float32, 4),
        (torch.bfloat16, 2),
        (torch.int64, 8),
        (torch.bool, 1),
        (torch.float8_e4m3fn, 1),
        (torch.complex64, 8),
        (CustomDtype.FP8, 1),
        (CustomDtype.INT4, 0.5),
        (CustomDtype.INT2, 0.25),
    ],
)
def test_dtype_byte_size(dtype: Any, size: float) -> None:
    assert dtype_byte_size(dtype) == size


def test_names_of_dtypes() -> None:
    assert proper_dtype("float16") is proper_dtype("torch.float16") is torch.float16
    assert proper_dtype(CustomDtype.INT4) is CustomDtype.INT4
    with pytest.raises(ValueError, match="dtype='floaty'"):
        proper_dtype("floaty")


def test_every_name_has_its_bytes() -> None:
    sizes = compute_module_sizes(net())
    expected = {"": 236, "first": 64, "first.weight": 48, "norm": 72, "norm.num_batches_tracked": 8, "last": 100}
    assert {name: sizes[name] for name in expected} == expected
    assert sizes["unknown"] == 0
    assert compute_module_sizes(net(), buffers_only=True)[""] == compute_module_total_buffer_size(net()) == 40


def test_dtype_brings_floats_down_and_never_up() -> None:
    assert compute_module_sizes(net(), dtype="float16")[""] == (236 - 8) // 2 + 8
    assert compute_module_sizes(net(), dtype=torch.float64)[""] == 236
    assert compute_module_sizes(net(), dtype=CustomDtype.INT4)["last"] == 13  # 25 elements, rounded up a tensor
    special = compute_module_sizes(net(), dtype=torch.float16, special_dtypes={"last.weight": torch.float32})
    assert special["last"] == 80 + 10


def test_shared_tensors_count_once() -> None:
    sizes = compute_module_sizes(language())
    assert (sizes[""], sizes["embed"], sizes["head"]) == (40 + 40 + 4000 + 3200, 4000, 0)


def test_largest_part() -> None:
    model, sizes = language(), compute_module_sizes(language())
    assert calculate_maximum_sizes(model) == (7280, (4000, ["embed"]))
    blocks = [(f"blocks.{i}", block) for i, block in enumerate(model.blocks)]
    assert get_max_layer_size(blocks, sizes, []) == (400, [f"blocks.{i}.{n}" for i in range(4) for n in ("up", "down")])
    assert get_max_layer_size(blocks, sizes, ["Block"]) == (800, [f"blocks.{i}" for i in range(4)])
    assert get_max_layer_size([("shift", model.shift)], sizes, None) == (40, ["shift"])


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (7, 7),
        (7.9, 7),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("1.5GB", 1_500_000_000),
        (" 2 MiB ", 2 * 1024**2),
        ("1gib", 1024**3),
        ("80Gb", 10_000_000_000),
        ("3TB", 3 * 10**12),
    ],
)
def test_sizes_from_text(text: Any, size: int) -> None:
    assert convert_file_size_to_int(text) == size


@pytest.mark.parametrize("text", ["", "GB", "12", "1 XB", "-1GB", None])
def test_what_is_no_size_is_quoted(text: Any) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        convert_file_size_to_int(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KB"),
        (1500, "1.46 KB"),
        (7 * 1024**3, "7.0 GB"),
        (3 * 1024**5, "3.0 PB"),
    ],
)
def test_bytes_as_people_read_them(size: int, text: str) -> None:
    assert convert_bytes(size) == text
