"""Sharing inputs out: every item once, in order, as equal as can be."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

from accelerate.state.splitting import share


def parts(inputs: Any, size: int, padded: bool = False) -> list[Any]:
    return [share(inputs, rank, size, padded) for rank in range(size)]


def test_lists() -> None:
    assert parts([1, 2, 3, 4, 5], 2) == [[1, 2, 3], [4, 5]]
    assert parts([1, 2, 3, 4, 5], 2, True) == [[1, 2, 3], [4, 5, 5]]
    assert parts([1, 2, 3, 4, 5, 6, 7], 3) == [[1, 2, 3], [4, 5], [6, 7]]
    assert parts([1], 3) == [[1], [], []]
    assert parts([1], 3, True) == [[1], [1], [1]]
    assert parts([], 2, True) == [[], []]


def test_tuples_and_tensors() -> None:
    assert parts((1, 2, 3), 2, True) == [(1, 2), (3, 3)]
    whole = torch.arange(6).view(3, 2)
    first, second = parts(whole, 2, True)
    assert first.tolist() == [[0, 1], [2, 3]] and second.tolist() == [[4, 5], [4, 5]]
    assert parts(whole, 2)[1].tolist() == [[4, 5]]


def test_dictionaries() -> None:
    first, second = parts({"a": [1, 2, 3], "b": torch.arange(3)}, 2, True)
    assert first["a"] == [1, 2] and first["b"].tolist() == [0, 1]
    assert second["a"] == [3, 3] and second["b"].tolist() == [2, 2]
    with pytest.raises(ValueError, match="differ in length: {'a': 2, 'b': 1}"):
        share({"a": [1, 2], "b": [1]}, 0, 2, False)


def test_anything_else_stays_whole() -> None:
    assert parts("abc", 2) == ["abc", "abc"]
    assert share(3, 1, 2, False) == 3


def test_a_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("datasets.arrow_dataset")

    class Dataset(list):  # type: ignore[type-arg]
        def select(self, places: list[int]) -> list[Any]:
            return [self[place] for place in places]

    Dataset.__module__ = module.__name__
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert parts(Dataset("abc"), 2, True) == [["a", "b"], ["c", "c"]]
