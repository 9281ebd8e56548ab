"""The line of user code that a message names."""

from __future__ import annotations

from pathlib import Path

import torch

from accelerate.comm.where import is_waiting_place, raised_at, user_line


def test_the_line_of_the_caller() -> None:
    here = user_line()
    assert here.startswith(f"{__file__}:")
    assert here.endswith(" in test_the_line_of_the_caller")


def test_torch_in_between_is_passed_over() -> None:
    class Asks(torch.nn.Module):
        def forward(self) -> str:
            return user_line()

    assert Asks()().endswith(" in forward")
    assert torch.utils.checkpoint.checkpoint(user_line, use_reentrant=False).endswith(
        " in test_torch_in_between_is_passed_over"
    )


def test_where_an_error_came_from() -> None:
    try:
        torch.ones(1).view(3)
    except RuntimeError as error:
        line = raised_at(error)
    assert line.endswith(" in test_where_an_error_came_from")
    assert raised_at(RuntimeError()) == "unknown place"


def test_places_that_wait() -> None:
    root = Path(torch.__file__).parent
    assert is_waiting_place(str(root / "distributed" / "distributed_c10d.py"))
    assert is_waiting_place(str(root / "autograd" / "graph.py"))
    assert not is_waiting_place(str(root / "serialization.py"))
    assert not is_waiting_place(__file__)
