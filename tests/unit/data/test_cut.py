"""Cutting whole batches for the ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from accelerate.data.cut import NOT_GIVEN, join, rows, shares, sliced, take
from accelerate.errors import PrepareError


class Pair(NamedTuple):
    first: Any
    second: Any


def numbers(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value


def test_how_many_samples_a_batch_has() -> None:
    assert rows(torch.zeros(3, 2)) == 3
    assert rows({"scale": torch.zeros(()), "x": [torch.zeros(4)]}) == 4
    assert rows({"text": ["a", "b"]}) == 2
    assert rows(Pair(None, ["a", "b", "c"])) == 3
    assert rows({"ids": [[1, 2], [3]]}) == 2
    assert rows("text") is None and rows(3) is None and rows({"scale": torch.zeros(())}) is None


def test_taking_samples_keeps_what_is_not_one_entry_a_sample() -> None:
    batch = {
        "x": torch.arange(8).view(4, 2),
        "scale": torch.tensor(2.0),
        "text": ["a", "b", "c", "d"],
        "flags": (True, False, True, False),
        "pair": Pair(torch.arange(4), "name"),
        "fields": [torch.arange(4), torch.arange(4)],
        "table": torch.arange(6),
        "array": np.arange(4),
        "nothing": None,
        "short": ["a", "b"],
    }
    part = take(batch, 1, 3, 4)
    assert part["x"].tolist() == [[2, 3], [4, 5]] and part["scale"] == 2.0
    assert part["text"] == ["b", "c"] and part["flags"] == (False, True)
    assert isinstance(part["pair"], Pair) and part["pair"].first.tolist() == [1, 2] and part["pair"].second == "name"
    assert [listed(field) for field in part["fields"]] == [[1, 2], [1, 2]]
    assert part["table"].tolist() == list(range(6)) and part["array"].tolist() == [1, 2]
    assert part["nothing"] is None and part["short"] == ["a", "b"]


def test_two_fields_in_a_batch_of_two_are_fields() -> None:
    part = take([numbers(1, 2), numbers(3, 4)], 0, 1, 2)
    assert [listed(field) for field in part] == [[1], [3]]


def test_joining() -> None:
    joined = join([{"x": numbers(1, 2), "t": ["a", "b"]}, {"x": numbers(3), "t": ["c"]}])
    assert joined["x"].tolist() == [1, 2, 3] and joined["t"] == ["a", "b", "c"]


def parts(batches: list[Any], count: int, **how: Any) -> tuple[list[Any], int]:
    settings: dict[str, Any] = {"split": False, "size": None, "even": True, "head": batches, **how}
    got, real = shares(batches, count, **settings)
    return [None if part is NOT_GIVEN else listed(part) for part in got], real


def test_whole_batches_go_as_they_are() -> None:
    assert parts([numbers(1, 2), numbers(3, 4)], 2) == ([[1, 2], [3, 4]], 0)
    assert parts([torch.zeros(2, 1), torch.zeros(2, 5)], 2)[1] == 0, "also where they differ in shape"
    assert parts(["a", "b"], 2) == (["a", "b"], 0)


def test_a_short_step_is_filled_from_the_beginning_as_samplers_do() -> None:
    head = [numbers(0, 1, 2), numbers(3, 4, 5), numbers(6, 7, 8)]
    assert parts([numbers(9)], 3, head=head) == ([[9, 0, 1], [2, 3, 4], [5, 6, 7]], 1)
    assert parts([numbers(9, 10, 11), numbers(12)], 3, head=head) == ([[9, 10, 11], [12, 0, 1], [2, 3, 4]], 4)
    assert parts([numbers(9, 10, 11)], 3, head=head) == ([[9, 10, 11], [0, 1, 2], [3, 4, 5]], 3)
    assert parts([numbers(0), numbers(1), numbers(2)], 3, size=2, head=head) == ([[0], [1], [2]], 0)


def test_what_cannot_be_joined_is_filled_with_whole_batches() -> None:
    head = [torch.zeros(2, 1), torch.zeros(2, 5)]
    got, real = shares([torch.ones(1, 3)], 2, split=False, size=2, even=True, head=head)
    assert got[0].shape == (1, 3) and got[1] is head[0] and real == 1
    assert parts(["c"], 2, head=["a", "b"]) == (["c", "a"], 1)


def test_without_filling_some_ranks_get_none() -> None:
    assert parts([numbers(1)], 3, even=False) == ([[1], None, None], 0)


def test_splitting() -> None:
    head = [numbers(0, 1, 2, 3)]
    assert parts([numbers(4, 5, 6, 7)], 2, split=True, size=4, head=head) == ([[4, 5], [6, 7]], 0)
    assert parts([numbers(4)], 2, split=True, size=4, head=head) == ([[4, 0], [1, 2]], 1)
    assert parts([numbers(4, 5, 6)], 2, split=True, size=None, head=head) == ([[4, 5], [6, 0]], 3)
    assert parts([numbers(4, 5, 6)], 2, split=True, size=4, even=False, head=head) == ([[4], [5, 6]], 0)
    assert parts([numbers(4)], 2, split=True, size=4, even=False, head=head) == ([[4], [0]], 1)
    text, real = shares([{"t": ["a", "b"]}], 2, split=True, size=2, even=True, head=[])
    assert text == [{"t": ["a"]}, {"t": ["b"]}] and real == 0
    with pytest.raises(PrepareError, match="a dict with no tensor and no list in it cannot be cut"):
        shares([{"a": 1}], 2, split=True, size=None, even=True, head=[])


def test_a_users_own_way_of_cutting() -> None:
    calls = []

    def cut(batch: Any, part: slice, process_index: int, num_processes: int) -> Any:
        calls.append((process_index, num_processes))
        return batch[part].tolist()

    head = [numbers(0, 1)]
    assert sliced([numbers(1, 2), numbers(3, 4)], 2, cut, even=True, head=head) == ([[1, 2], [3, 4]], 0)
    assert sliced([numbers(1, 2), numbers(3)], 2, cut, even=True, head=head) == ([[1, 2], [3, 0]], 3)
    assert sliced([numbers(1, 2), numbers(3)], 2, cut, even=False, head=head) == ([[1, 2], [3]], 0)
    assert calls[:2] == [(0, 2), (1, 2)]
