"""The public interface as facts (``api.json``, ``surface.json``), and how far something keeps to them."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
API: dict[str, dict[str, dict[str, Any]]] = json.loads((HERE / "api.json").read_text())
SURFACE: dict[str, list[str]] = json.loads((HERE / "surface.json").read_text())

_ANY = "(*args, **kwargs)"
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def entries() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(module, name, facts) of everything that is promised."""
    for module, names in API.items():
        for name, facts in names.items():
            yield module, name, facts


def resolve(module: str, name: str) -> Any:
    """What a name in a module stands for."""
    return getattr(import_module(module), name)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One parameter of a promised signature; ``default`` is its text, or None where there is none."""

    name: str
    kind: inspect._ParameterKind
    default: str | None


def parameters(signature: str) -> list[Parameter]:
    """The parameters in the text of a signature. What is no Python (``<object object>``) becomes an ellipsis."""
    text, before = signature, ""
    while text != before:
        text, before = re.sub(r"<[^<>]*>", "...", text), text
    text = text.split(" -> ")[0]
    (function,) = ast.parse(f"def f{text}: ...").body
    assert isinstance(function, ast.FunctionDef)
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    found = [Parameter(arg.arg, _POSITIONAL[1], _text(value)) for arg, value in zip(positional, defaults, strict=True)]
    if given.vararg:
        found.append(Parameter(given.vararg.arg, inspect.Parameter.VAR_POSITIONAL, None))
    for arg, value in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        found.append(Parameter(arg.arg, inspect.Parameter.KEYWORD_ONLY, _text(value)))
    if given.kwarg:
        found.append(Parameter(given.kwarg.arg, inspect.Parameter.VAR_KEYWORD, None))
    return found


def _text(node: ast.expr | None) -> str | None:
    return None if node is None else ast.unparse(node)


def signature_problems(expected: str, actual: inspect.Signature) -> list[str]:
    """Calls that the promised signature takes and ours would not, or would take differently."""
    if expected == _ANY:
        return []
    ours = list(actual.parameters.values())
    by_name = {parameter.name: parameter for parameter in ours}
    kinds = {parameter.kind for parameter in ours}
    if {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} == kinds:
        return []
    problems, names = [], set()
    for index, promised in enumerate(parameters(expected)):
        names.add(promised.name)
        if promised.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            if promised.kind not in kinds:
                problems.append(
                    f"takes no {'*' * (1 + (promised.kind is inspect.Parameter.VAR_KEYWORD))}{promised.name}"
                )
            continue
        mine = by_name.get(promised.name)
        if mine is None:
            problems.append(f"has no {promised.name}")
            continue
        if promised.kind in _POSITIONAL and (mine.kind not in _POSITIONAL or ours.index(mine) != index):
            problems.append(f"takes {promised.name} at another place")
        if mine.kind is inspect.Parameter.POSITIONAL_ONLY:
            problems.append(f"takes {promised.name} by position only")
        if promised.default is not None:
            problems += _default_problem(promised, mine)
    for parameter in ours:
        free = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if parameter.name not in names and parameter.default is inspect.Parameter.empty and not free:
            problems.append(f"asks for {parameter.name}")
    return problems


def _default_problem(promised: Parameter, mine: inspect.Parameter) -> list[str]:
    if mine.default is inspect.Parameter.empty:
        return [f"asks for {promised.name}"]
    try:
        value = ast.literal_eval(promised.default or "")
    except (ValueError, SyntaxError):
        return []
    if value is ... or mine.default == value:
        return []
    return [f"{promised.name} is {mine.default!r} by default, not {value!r}"]


def problems(value: Any, facts: dict[str, Any]) -> list[str]:
    """Where a value does not keep to its facts."""
    kind = facts["kind"]
    if kind == "value":
        return _value_problems(value, facts["repr"])
    if kind == "function":
        return signature_problems(facts["sig"], inspect.signature(value)) if callable(value) else ["is not callable"]
    if not isinstance(value, type):
        return ["is no class"]
    if kind == "enum":
        return _enum_problems(value, facts["members"])
    found = _field_problems(value, facts["fields"]) if kind == "dataclass" else []
    if facts.get("init") is not None:
        found += [f"__init__ {problem}" for problem in signature_problems(facts["init"], inspect.signature(value))]
    return found + _method_problems(value, facts.get("methods") or {})


def _value_problems(value: Any, text: str) -> list[str]:
    cut = text.endswith(", ")  # long values were written down in part
    right = repr(value).startswith(text) if cut else repr(value) == text
    return [] if right else [f"is {value!r}, not {text}"]


def _enum_problems(value: type, members: dict[str, Any]) -> list[str]:
    if not issubclass(value, enum.Enum):
        return ["is no enumeration"]
    ours = {member.name: member.value for member in value}
    return [
        f"{name} is {ours.get(name)!r}, not {wanted!r}" for name, wanted in members.items() if ours.get(name) != wanted
    ]


def _field_problems(value: type, fields: dict[str, dict[str, str]]) -> list[str]:
    if not dataclasses.is_dataclass(value):
        return ["is no dataclass"]
    ours = {field.name: field for field in dataclasses.fields(value)}
    found = []
    for name, facts in fields.items():
        if name not in ours:
            found.append(f"has no field {name}")
        elif facts["default"] not in ("factory", _default(ours[name])):
            found.append(f"field {name} is {_default(ours[name])} by default, not {facts['default']}")
    return found


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return repr(field.default)
    return "factory" if field.default_factory is not dataclasses.MISSING else "required"


def _method_problems(value: type, methods: dict[str, str | None]) -> list[str]:
    found = []
    for name, text in methods.items():
        try:
            mine = inspect.getattr_static(value, name)
        except AttributeError:
            if name not in getattr(value, "__annotations__", {}):
                found.append(f"has no {name}")
            continue
        if text == "property":
            if callable(mine) or not hasattr(type(mine), "__get__"):
                found.append(f"{name} is no property")
        elif text is not None:
            function = mine.__func__ if isinstance(mine, (staticmethod, classmethod)) else mine
            signature = inspect.signature(function)
            if isinstance(mine, classmethod):
                signature = signature.replace(parameters=list(signature.parameters.values())[1:])
            found += [f"{name}() {problem}" for problem in signature_problems(text, signature)]
    return found
