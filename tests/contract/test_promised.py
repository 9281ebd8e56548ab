"""The measure itself: it sees every way in which a name can break its promise."""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from contract.promised import Parameter, parameters, problems, signature_problems


def test_signatures_are_read() -> None:
    text = "(self, a: 'int', b: 'X | None' = <object object>, *rest, c: Union[str, <built-in x>] = 'n', **kw) -> 'None'"
    kinds = inspect.Parameter
    assert parameters(text) == [
        Parameter("self", kinds.POSITIONAL_OR_KEYWORD, None),
        Parameter("a", kinds.POSITIONAL_OR_KEYWORD, None),
        Parameter("b", kinds.POSITIONAL_OR_KEYWORD, "..."),
        Parameter("rest", kinds.VAR_POSITIONAL, None),
        Parameter("c", kinds.KEYWORD_ONLY, "'n'"),
        Parameter("kw", kinds.VAR_KEYWORD, None),
    ]


@pytest.mark.parametrize(
    ("ours", "found"),
    [
        (lambda a, b=1: 0, []),
        (lambda a, b=1, c=2, *, d=3: 0, []),
        (lambda a=0, b=1: 0, []),
        (lambda *args, **kwargs: 0, []),
        (lambda a, b=2: 0, ["b is 2 by default, not 1"]),
        (lambda a, b: 0, ["asks for b"]),
        (lambda a: 0, ["has no b"]),
        (lambda b=1, a=0: 0, ["takes a at another place", "takes b at another place"]),
        (lambda a, *, b=1: 0, ["takes b at another place"]),
        (lambda a, b=1, *, c: 0, ["asks for c"]),
        (lambda a, c, b=1: 0, ["takes b at another place", "asks for c"]),
    ],
)
def test_signatures_are_compared(ours: Callable[..., Any], found: list[str]) -> None:
    assert signature_problems("(a, b=1)", inspect.signature(ours)) == found


def test_keywords_and_varargs_are_compared() -> None:
    def ours(a: int, *, k: int = 0) -> None: ...

    assert signature_problems("(a, *, k=0)", inspect.signature(ours)) == []
    assert signature_problems("(a, *args, **kw)", inspect.signature(ours)) == ["takes no *args", "takes no **kw"]
    assert signature_problems("(*args, **kwargs)", inspect.signature(ours)) == []


def test_classes_are_compared() -> None:
    @dataclasses.dataclass
    class Ours:
        a: int = 1
        b: list[int] = dataclasses.field(default_factory=list)

        @property
        def shown(self) -> int:
            return 1

        def call(self, x: int) -> None: ...

        @classmethod
        def make(cls, x: int) -> None: ...

    facts: dict[str, Any] = {
        "kind": "dataclass",
        "fields": {"a": {"default": "1"}, "b": {"default": "factory"}},
        "methods": {"shown": "property", "call": "(self, x)", "make": "(x)", "a": None},
    }
    assert problems(Ours, facts) == []
    facts["fields"] |= {"a": {"default": "2"}, "c": {"default": "1"}}
    facts["methods"] = {"call": "property", "gone": "(self)", "make": "(y)"}
    assert problems(Ours, facts) == [
        "field a is 1 by default, not 2",
        "has no field c",
        "call is no property",
        "has no gone",
        "make() has no y",
        "make() asks for x",
    ]
    assert problems(1, facts) == ["is no class"]


def test_enumerations_and_values_are_compared() -> None:
    class Ours(enum.Enum):
        A = "a"

    assert problems(Ours, {"kind": "enum", "members": {"A": "a"}}) == []
    assert problems(Ours, {"kind": "enum", "members": {"A": "x", "B": "b"}}) == [
        "A is 'a', not 'x'",
        "B is None, not 'b'",
    ]
    assert problems(["x", "y"], {"kind": "value", "repr": "['x', "}) == []
    assert problems("y", {"kind": "value", "repr": "'x'"}) == ["is 'y', not 'x'"]
