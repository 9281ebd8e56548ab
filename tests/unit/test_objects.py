"""Names, attributes and nested dictionaries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from accelerate.objects import get_pretty_name, merge_dicts, recursive_getattr


class Named:
    def method(self) -> None: ...


@pytest.mark.parametrize(
    ("obj", "name"),
    [
        (Named, "Named"),
        (Named(), "Named"),
        (Named.method, "Named.method"),
        (get_pretty_name, "get_pretty_name"),
        (len, "len"),
        ({}, "dict"),
        (3, "int"),
    ],
)
def test_pretty_names(obj: Any, name: str) -> None:
    assert get_pretty_name(obj) == name


def test_merge_goes_into_the_destination_at_every_depth() -> None:
    inner = {"x": 1}
    destination: dict[str, Any] = {"a": inner, "b": 2, "c": 3}
    assert merge_dicts({"a": {"y": {"z": 2}}, "b": {"q": 1}, "d": {"e": 5}}, destination) is destination
    assert destination == {"a": {"x": 1, "y": {"z": 2}}, "b": {"q": 1}, "c": 3, "d": {"e": 5}}
    assert destination["a"] is inner


def test_dotted_attributes() -> None:
    obj = SimpleNamespace(a=SimpleNamespace(b=[1]))
    assert recursive_getattr(obj, "a.b") == [1]
    assert recursive_getattr(obj, "a") is obj.a
    with pytest.raises(AttributeError, match="'c'"):
        recursive_getattr(obj, "a.c")
