"""The same setting said by code and by the launch."""

from __future__ import annotations

from typing import Literal, TypeVar

from accelerate.config.notice import notice
from accelerate.errors import ConflictError

__all__ = ["STRUCTURAL", "reconcile"]

T = TypeVar("T")

STRUCTURAL = frozenset({"strategy", "distributed_type", "plugin", "num_processes", "parallelism", "backend"})
"""Settings that code cannot overrule: the launch has already acted on them."""


def reconcile(
    name: str,
    code_value: T | None,
    launch_value: T | None,
    default: T,
    *,
    code: str | None = None,
    launch: str | None = None,
    rule: Literal["code", "error"] | None = None,
) -> T:
    """The value to use where code (``Accelerator(name=...)``) and the launch may both have spoken; None is unsaid.

    One side, or both saying the same: that value. Both saying different things: code goes first, with one notice that
    quotes both, since scripts that choose their own precision or accumulation are meant to be started by any launch.
    For what the launch has already acted on (:data:`STRUCTURAL`, or ``rule="error"``) it is an error.
    ``code`` and ``launch`` say where the two stand, for the message.

    Raises:
        ConflictError: both differ in something structural.
    """
    if code_value is None:
        return default if launch_value is None else launch_value
    if launch_value is None or _same(code_value, launch_value):
        return code_value
    here = code or f"{name}={_spelt(code_value)} in code"
    there = launch or f"{name}={_spelt(launch_value)} from the launch"
    if (rule or ("error" if name in STRUCTURAL else "code")) == "error":
        raise ConflictError(f"{here} and {there} contradict each other. Remove one of them, or make them equal.")
    notice(f"{here} goes before {there}.")
    return code_value


def _spelt(value: object) -> str:
    return repr(getattr(value, "value", value))


def _same(first: object, second: object) -> bool:
    left, right = getattr(first, "value", first), getattr(second, "value", second)
    return left == right or str(left).lower() == str(right).lower()
