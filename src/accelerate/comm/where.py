"""Where in the user's program a call came from, for messages."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType

__all__ = ["is_waiting_place", "raised_at", "user_frame", "user_line", "user_place"]

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_SCRIPTS = str(Path(_PACKAGE) / "test_utils")
_STANDARD = str(Path(contextlib.__file__).parent)


@cache
def _internal(filename: str) -> bool:
    """Whether a file belongs to the library, to torch or to Python itself."""
    if filename.startswith("<"):
        return True
    torch_file = getattr(sys.modules.get("torch"), "__file__", None)
    path = str(Path(filename).resolve())
    if path.startswith(_PACKAGE):
        return not path.startswith(_SCRIPTS)
    if torch_file is not None and path.startswith(str(Path(torch_file).resolve().parent)):
        return True
    return bool(_STANDARD) and path.startswith(_STANDARD) and "site-packages" not in path


@cache
def is_waiting_place(filename: str) -> bool:
    """Whether code of this file stands still while it waits for other ranks: torch's collectives and backward."""
    torch_file = getattr(sys.modules.get("torch"), "__file__", None)
    if torch_file is None:
        return False
    root = Path(torch_file).parent
    places = (str(root / "distributed"), str(root / "autograd"), str(root / "_tensor.py"))
    return filename.startswith(places)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def user_frame(start: FrameType | None = None) -> FrameType | None:
    """The innermost frame outside the library, torch and Python's own modules, seen from ``start`` (or the caller)."""
    return next(
        (frame for frame in _outwards(start or sys._getframe(1)) if not _internal(frame.f_code.co_filename)), None
    )


def user_line(start: FrameType | None = None) -> str:
    """``file.py:12 in train`` for the line of user code that is running, or ``unknown place``."""
    frame = user_frame(start or sys._getframe(1))
    if frame is None:
        return "unknown place"
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def user_place(start: FrameType | None = None) -> str:
    """Where that line is for a person to find again: the number of a notebook's cell, where it is in one."""
    frame = user_frame(start or sys._getframe(1))
    cells = frame.f_globals.get("In") if frame is not None and "get_ipython" in frame.f_globals else None
    if frame is None or not isinstance(cells, list):
        return user_line(frame or start)
    return f"line {frame.f_lineno} of cell [{len(cells) - 1}]"


def raised_at(error: BaseException) -> str:
    """The line of user code that led to ``error``, as :func:`user_line` puts it."""
    found, step = "unknown place", error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if not _internal(code.co_filename):
            found = f"{code.co_filename}:{step.tb_lineno} in {code.co_name}"
        step = step.tb_next
    return found
