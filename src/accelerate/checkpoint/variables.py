"""By which variables a program holds its objects, read off the call it makes and off its global variables.

Local variables of a function are not looked at where Python would keep a copy of all of them until the function
returns (before 3.13): a loss or a batch would live on in it. Names that say no more than an order, such as ``nets[0]``,
are not names.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

__all__ = ["call_names", "held_names"]

_PARTS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_SILENT = frozenset({"CACHE", "PRECALL", "KW_NAMES", "EXTENDED_ARG", "NOP", "PUSH_NULL"})
_MOST_KEYS = 64

Step = tuple[str, Any]


def call_names(frame: FrameType | None, count: int) -> list[tuple[str, ...]]:
    """The names of each of ``count`` arguments of the call that ``frame`` is in, and of what its result is assigned to.

    ``a, self.b = prepare(x, y['k'])`` gives ``("x", "a")`` and ``("y['k']", "self.b")``. An argument that is not a
    plain name gives none.
    """
    found: list[list[str]] = [[] for _ in range(count)]
    if frame is not None and count:
        before, call, after = _around(frame)
        for names, more in (
            (found, _arguments(before, count) if _plain(call) else []),
            (found, _targets(after, count)),
        ):
            for own, name in zip(names, more, strict=False):
                if name is not None and name not in own:
                    own.append(name)
    return _unshared(found)


def held_names(frame: FrameType | None, objects: Sequence[Any]) -> list[tuple[str, ...]]:
    """The names under which the variables of ``frame`` hold each of ``objects``, where they may be looked at."""
    found: list[list[str]] = [[] for _ in objects]
    if frame is not None and (sys.version_info >= (3, 13) or frame.f_code.co_name == "<module>"):
        wanted = {id(obj): index for index, obj in enumerate(objects)}
        for name, value in _reachable(frame.f_locals):
            index = wanted.get(id(value))
            if index is not None and objects[index] is value and name not in found[index]:
                found[index].append(name)
    return _unshared(found)


def _unshared(found: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    counts: dict[str, int] = {}
    for names in found:
        for name in names:
            counts[name] = counts.get(name, 0) + 1
    return [tuple(name for name in names if counts[name] == 1) for names in found]


def _reachable(variables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in list(variables.items()):
        if name.startswith("__"):
            continue
        yield name, value
        if name == "self":
            for attribute, held in list(getattr(value, "__dict__", {}).items()):
                yield f"self.{attribute}", held
        # The exact type: another mapping's iteration may cost or change something.
        elif type(value) is dict and len(value) <= _MOST_KEYS:
            for key, item in list(value.items()):
                if isinstance(key, str):
                    yield f"{name}[{key!r}]", item


def _around(frame: FrameType) -> tuple[list[Step], str, list[Step]]:
    """The instructions of a frame up to the call it is in, that call, and those after it."""
    # Where a call is followed by caches of the interpreter, the frame is at the last of them.
    done = [i for i in dis.get_instructions(frame.f_code) if i.opname not in _SILENT]
    call = max((i for i in done if i.offset <= frame.f_lasti), key=lambda i: i.offset, default=None)
    if call is None:
        return [], "", []
    before = [step for i in done if i.offset < call.offset for step in _single(i)]
    after = [step for i in done if i.offset > call.offset for step in _single(i)]
    return before, call.opname, after


def _single(instruction: dis.Instruction) -> list[Step]:
    """An instruction, or those that a combined one stands for."""
    operation, value = instruction.opname, instruction.argval
    if isinstance(value, tuple) and operation.count("_FAST") > 1:
        kinds = [part for part in operation.split("_") if part in ("LOAD", "STORE")]
        return [(f"{kind}_FAST", name) for kind, name in zip(kinds, value, strict=False)]
    return [(operation, value)]


def _plain(call: str) -> bool:
    """Whether a call has its arguments on the stack one by one."""
    return call.startswith("CALL") and not call.startswith("CALL_FUNCTION_EX") and "KW" not in call


def _is_load(operation: str) -> bool:
    return operation.startswith(("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF"))


def _arguments(steps: Sequence[Step], count: int) -> list[str | None]:
    """The names of the last ``count`` values put on the stack, as far as they are plain, from the right."""
    names: list[str | None] = [None] * count
    at = len(steps) - 1
    for place in range(count - 1, -1, -1):
        name, at = _expression(steps, at)
        if name is None:
            break
        names[place] = name
    return names


def _expression(steps: Sequence[Step], at: int) -> tuple[str | None, int]:
    """The plain expression that ends at ``at``, and where the one before it ends."""
    suffix = ""
    while at >= 0:
        operation, value = steps[at]
        if operation in _PARTS:
            suffix = f".{value}{suffix}"
            at -= 1
        elif operation.startswith("BINARY_SUBSCR") or (operation == "BINARY_OP" and value == "[]"):
            key = steps[at - 1] if at else ("", None)
            if key[0] != "LOAD_CONST" or not isinstance(key[1], str):
                return None, at
            suffix = f"[{key[1]!r}]{suffix}"
            at -= 2
        elif _is_load(operation) and isinstance(value, str):
            return f"{value}{suffix}", at - 1
        else:
            return None, at
    return None, at


def _targets(steps: Sequence[Step], count: int) -> list[str | None]:
    """What the value on the stack is assigned to: ``count`` names where it is unpacked, or one."""
    rest = list(steps)
    if count > 1:
        if not rest or rest[0] != ("UNPACK_SEQUENCE", count):
            return []
        rest = rest[1:]
    names: list[str | None] = []
    while rest and len(names) < count:
        operation, value = rest[0]
        if operation.startswith("STORE_") and operation not in ("STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE"):
            names.append(str(value))
            rest = rest[1:]
        elif _is_load(operation) and len(rest) > 1 and rest[1][0] == "STORE_ATTR":
            names.append(f"{value}.{rest[1][1]}")
            rest = rest[2:]
        else:
            break
    return names if len(names) == count else []
