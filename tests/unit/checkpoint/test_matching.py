"""Objects are told apart by what they are and how they are called, never by order alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from accelerate.checkpoint.matching import Candidate, match
from accelerate.errors import CheckpointMismatchError


def one(index: int, *names: str, key: Any = "k", token: str = "", content: Any = None) -> Candidate:
    return Candidate(index=index, keys=(key, "any"), names=names, token=token, label=f"L{index}", content=content)


def test_shapes_alone_where_they_differ() -> None:
    assert match("m", [one(0, key="a"), one(1, key="b")], [one(0, key="b"), one(1, key="a")]) == {0: 1, 1: 0}


def test_names_where_shapes_are_equal() -> None:
    assert match("m", [one(0, "gen"), one(1, "disc")], [one(0, "disc"), one(1, "gen")]) == {0: 1, 1: 0}


def test_names_that_several_share_do_not_count() -> None:
    saved = [one(0, "model", "gen"), one(1, "model", "disc")]
    assert match("m", saved, [one(0, "disc", "m"), one(1, "gen", "m")]) == {0: 1, 1: 0}


@pytest.mark.parametrize(
    ("saved", "now"),
    [
        ([one(0), one(1)], [one(0), one(1)]),
        ([one(0, "a"), one(1, "b")], [one(0, "c"), one(1, "d")]),
        ([one(0, "a", "x"), one(1, "b", "y")], [one(0, "a", "y"), one(1, "b", "x")]),
        ([one(0), one(1)], [one(0)]),
        ([one(0)], [one(0), one(1)]),
    ],
    ids=["no names", "other names", "names that contradict", "two saved, one now", "one saved, two now"],
)
def test_where_nothing_tells_it_is_an_error_that_lists_both_sides(saved: Any, now: Any) -> None:
    with pytest.raises(CheckpointMismatchError) as raised:
        match("model", saved, now)
    for text in ("in the checkpoint: L0", "prepared now: L0", "match='order'"):
        assert text in str(raised.value)


def test_order_decides_where_it_is_asked_to() -> None:
    assert match("m", [one(0, "a"), one(1, "b")], [one(0, "c"), one(1, "d")], by_order=True) == {0: 0, 1: 1}
    assert match("m", [one(0, "a"), one(1, "b")], [one(0, "b"), one(1, "d")], by_order=True) == {0: 1, 1: 0}


def test_what_is_left_when_names_have_decided_belongs_together() -> None:
    assert match("m", [one(0, "gen"), one(1, "old")], [one(0, "new"), one(1, "gen")]) == {1: 0, 0: 1}


def test_one_of_several_is_found_by_name() -> None:
    assert match("m", [one(0, "gen"), one(1, "disc")], [one(0, "disc")]) == {0: 1}


def test_the_live_object_is_known_whatever_its_name() -> None:
    saved = [one(0, "a", token="t0"), one(1, "b", token="t1")]
    assert match("m", saved, [one(0, "x", token="t1"), one(1, "y", token="t0")]) == {0: 1, 1: 0}


def test_equal_contents_may_be_exchanged() -> None:
    state = {"a": [1, torch.ones(2)]}
    same = [one(0, content=state), one(1, content={"a": [1, torch.ones(2)]})]
    assert match("l", same, [one(0), one(1)]) == {0: 0, 1: 1}
    with pytest.raises(CheckpointMismatchError):
        match("l", [one(0, content=state), one(1, content={"a": [1, torch.zeros(2)]})], [one(0), one(1)])


def test_the_looser_key_is_for_what_is_left() -> None:
    assert match("m", [one(0, key="a"), one(1, key="b")], [one(0, key="a"), one(1, key="c")]) == {0: 0, 1: 1}
    assert match("m", [one(0, key="a")], []) == {}
