"""Dictionaries that all instances of a state class share."""

from __future__ import annotations

import threading
from typing import Any

from accelerate import runtime

__all__ = ["SharedDict", "ThreadLocalSharedDict", "do_nothing"]


def do_nothing(*args: Any, **kwargs: Any) -> None:
    """Takes anything and does nothing."""


class SharedDict:
    """A class attribute that reads as one of this rank's shared dictionaries, on the class and on instances."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, obj: Any, owner: type | None = None) -> dict[str, Any]:
        shared: dict[str, Any] = getattr(runtime.slots(), self._name)
        return shared


class ThreadLocalSharedDict(threading.local):
    """A class attribute that holds one dictionary a thread."""

    def __init__(self, thread_local: bool = False) -> None:
        self._storage: dict[str, Any] = {}

    def __get__(self, obj: Any, objtype: type | None = None) -> dict[str, Any]:
        return self._storage

    def __set__(self, obj: Any, value: dict[str, Any]) -> None:
        self._storage = value
