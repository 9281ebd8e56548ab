"""How the objects of an accelerator are called, for as long as they live."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from accelerate.checkpoint.variables import call_names, held_names
from accelerate.comm.where import user_frame

__all__ = ["Identities"]

# Frames of the program that are searched for variables, from the innermost outwards.
_DEPTH = 6


class _Known:
    """What is known of one live object."""

    def __init__(self, obj: Any) -> None:
        self.get: Callable[[], Any]
        try:
            self.get = weakref.ref(obj)
        except TypeError:
            self.get = lambda: obj
        self.token = uuid.uuid4().hex[:16]
        self.found: list[str] = []
        self.given: str | None = None


class Identities:
    """Names and tokens of objects. A name is a variable that held the object, or one that was given to it.

    A token belongs to the live object: a checkpoint of this very object is known again whatever its name.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}

    def _of(self, obj: Any) -> _Known:
        known = self._known.get(id(obj))
        if known is None or known.get() is not obj:
            known = self._known[id(obj)] = _Known(obj)
        return known

    def note(self, frame: FrameType | None, given: Sequence[Any], prepared: Sequence[Any]) -> None:
        """Remembers the variables of ``frame``, which is in a call that was given ``given``, for what each became."""
        for names in (call_names(frame, len(given)), _names(frame, given)):
            for own, became in zip(names, prepared, strict=True):
                if not isinstance(became, (int, float, str, bytes, bool, type(None))):
                    self._add(became, own)

    def look(self, frame: FrameType | None, objects: Sequence[Any]) -> None:
        """Adds the variables in and around ``frame`` that hold ``objects`` now."""
        for names, obj in zip(_names(frame, objects), objects, strict=True):
            self._add(obj, names)

    def _add(self, obj: Any, names: Sequence[str]) -> None:
        known = self._of(obj)
        known.found.extend(name for name in names if name not in known.found)

    def name(self, obj: Any, name: str) -> None:
        """Gives an object a name, which stands for all others."""
        self._of(obj).given = name

    def names(self, obj: Any) -> tuple[str, ...]:
        """The names of an object."""
        known = self._of(obj)
        return (known.given,) if known.given is not None else tuple(known.found)

    def token(self, obj: Any) -> str:
        """The token of a live object."""
        return self._of(obj).token


def _names(frame: FrameType | None, objects: Sequence[Any]) -> list[list[str]]:
    """Names by object, those of the innermost frame first."""
    found: list[list[str]] = [[] for _ in objects]
    for _ in range(_DEPTH):
        if frame is None:
            break
        for own, names in zip(found, held_names(frame, objects), strict=True):
            own.extend(name for name in names if name not in own)
        frame = user_frame(frame.f_back) if frame.f_back is not None else None
    return found
