"""Letting some ranks go first, and telling the others when they failed."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from accelerate.comm.frames import Frames, Op
from accelerate.comm.here import frames
from accelerate.comm.where import raised_at
from accelerate.errors import CollectiveError

__all__ = ["first"]


@contextmanager
def first(goes_first: bool) -> Iterator[None]:
    """Collective. Ranks with ``goes_first`` run the body at once; the others when all of those have left it.

    Raises:
        BaseException: what the body raised on a rank that went first is raised on every rank.
    """
    wire = frames()
    if wire is None:
        yield
        return
    if not goes_first:
        _share(wire, b"")
        yield
        return
    try:
        yield
    except BaseException as error:
        try:
            _share(wire, _packed(error))
        except CollectiveError:
            pass  # the others are gone or elsewhere: what happened here is what has to be seen
        except BaseException as other:
            if type(other) is not type(error):
                raise
        raise
    _share(wire, b"")


def _share(wire: Frames, failure: bytes) -> None:
    """Collective. Raises the failure of the first rank that has one, except on that rank itself."""
    told = wire.swap_bytes(Op.MAIN_PROCESS_FIRST, 0, failure, lambda: "")
    for rank, data in enumerate(told):
        if data and rank != wire.rank:
            error, place = _unpacked(data)
            raise error from CollectiveError(
                f"Rank {rank} raised this at {place}, in a block that it goes through first, while rank {wire.rank} "
                "waited for it."
            )
        if data:
            return


def _packed(error: BaseException) -> bytes:
    kind = type(error)
    place = raised_at(error)
    try:
        whole = pickle.dumps(error)
        if type(pickle.loads(whole)) is not kind or str(pickle.loads(whole)) != str(error):
            whole = b""
    except Exception:  # exceptions may refuse to be pickled in any way they like
        whole = b""
    return pickle.dumps((whole, kind.__module__, kind.__qualname__, str(error), place))


def _unpacked(data: bytes) -> tuple[BaseException, str]:
    whole, module, name, message, place = pickle.loads(data)
    if whole:
        try:
            error: BaseException = pickle.loads(whole)
            return error, place
        except Exception:  # a class that only the other rank can rebuild
            pass
    try:
        kind: Any = import_module(module)
        for part in name.split("."):
            kind = getattr(kind, part)
        rebuilt: BaseException = kind.__new__(kind)
        rebuilt.args = (message,)
        return rebuilt, place
    except (ImportError, AttributeError, TypeError):
        return CollectiveError(f"{name}: {message}"), place
