"""Which numbers a reduction is computed in, and what comes out."""

from __future__ import annotations

import pytest
import torch

from accelerate.comm.reduction import reduce_rows, widen


@pytest.mark.parametrize(
    ("rows", "op", "wanted"),
    [
        (torch.tensor([[1.0], [2.0]]), "sum", torch.tensor([3.0])),
        (torch.tensor([[1.0], [2.0]]), "mean", torch.tensor([1.5])),
        (torch.tensor([[1, 5], [2, 3]]), "max", torch.tensor([2, 5])),
        (torch.tensor([[1, 5], [2, 3]]), "min", torch.tensor([1, 3])),
        (torch.tensor([[1], [2]]), "mean", torch.tensor([1.5])),
        (torch.tensor([[True], [True]]), "sum", torch.tensor([2])),
        (torch.tensor([[True], [False]]), "mean", torch.tensor([0.5])),
        (torch.tensor([[True], [False]]), "min", torch.tensor([False])),
        (torch.tensor([[1 + 2j], [3 + 0j]]), "mean", torch.tensor([2 + 1j])),
    ],
)
def test_values_and_dtypes(rows: torch.Tensor, op: str, wanted: torch.Tensor) -> None:
    found = reduce_rows(rows, op)
    assert found.dtype is wanted.dtype
    assert torch.equal(found, wanted)


def test_half_precision_is_summed_in_float32() -> None:
    rows = torch.full((64, 1), 2048.0, dtype=torch.float16)
    assert reduce_rows(rows, "mean").item() == 2048.0  # the sum alone would overflow
    small = torch.tensor([[256.0], [1.0], [1.0]], dtype=torch.bfloat16)
    assert reduce_rows(small, "sum").item() == 258.0  # 256 + 1 is 256 in bfloat16


def test_eight_bit_floats() -> None:
    rows = torch.tensor([[1.0], [2.0]]).to(torch.float8_e4m3fn)
    assert reduce_rows(rows, "sum").float().item() == 3.0


def test_what_cannot_be_reduced() -> None:
    with pytest.raises(ValueError, match="'max' needs an order"):
        widen(torch.tensor([1j]), "max")
    with pytest.raises(ValueError, match="'median' is not one of sum, mean, min, max"):
        widen(torch.ones(1), "median")
