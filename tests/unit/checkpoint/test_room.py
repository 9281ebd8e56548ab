"""Memory for what is loaded and staged."""

from __future__ import annotations

import pytest
import torch

from accelerate.checkpoint.room import copied, room


@pytest.mark.parametrize("size", [0, 1, (4 << 20) - 1, (4 << 20) + 4096])
def test_room_is_writable_and_of_its_size(size: int) -> None:
    made = room(size)
    assert made.shape == (size,)
    made.fill_(7)
    assert made.sum().item() == 7 * size


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(3.0),
        torch.arange(2.0**21),
        torch.ones(1 << 21, dtype=torch.bfloat16),
        torch.arange(2.0**21).view(1024, 2048).t(),
        torch.ones(8, 64, 64, 64).to(memory_format=torch.channels_last),
    ],
)
def test_a_copy_is_equal_and_apart(tensor: torch.Tensor) -> None:
    made = copied(tensor)
    assert torch.equal(made, tensor)
    assert made.stride() == tensor.stride()
    assert made.data_ptr() != tensor.data_ptr()
    made.zero_()
    assert tensor.count_nonzero() > 0
