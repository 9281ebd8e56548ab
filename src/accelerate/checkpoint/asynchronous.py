"""A save that goes on while training does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from accelerate.checkpoint.meeting import Meeting
from accelerate.errors import CheckpointError

__all__ = ["Save", "finished", "in_background", "raise_outcome", "with_main"]


class Save:
    """One save. ``path`` is where the checkpoint is, or will be, once ``wait`` has returned."""

    def __init__(self, path: str) -> None:
        self.path = path

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return True

    def wait(self, timeout: float | None = None) -> str:
        """Returns ``path`` once the checkpoint is complete. An error is raised once; a later call returns.

        Raises:
            CheckpointError: it could not be written; what was there before is still there.
            TimeoutError: it is not complete after ``timeout`` seconds, and goes on.
        """
        return self.path

    def __fspath__(self) -> str:
        return self.path


def finished(path: str) -> Save:
    """A save that is over."""
    return Save(path)


class _Background(Save):
    def __init__(self, path: str, work: Callable[[], Any]) -> None:
        super().__init__(path)
        self._work = work
        self._error: BaseException | None = None
        # Not a daemon: the interpreter waits for it before it ends.
        self._thread = threading.Thread(target=self._run, name="accelerate-save", daemon=False)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error

    def done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> str:
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"The checkpoint {self.path} is not complete after {timeout} s; its save goes on.")
        error, self._error = self._error, None
        if error is not None:
            raise CheckpointError(
                f"The checkpoint {self.path} could not be written in the background: {error}. Those that were "
                "complete before are still there."
            ) from error
        return self.path


def in_background(path: str, work: Callable[[], Any]) -> Save:
    """Starts ``work`` on a thread that the interpreter waits for; the save it is part of."""
    return _Background(path, work)


class _OfMain(Save):
    def __init__(self, path: str, meeting: Meeting, session: str) -> None:
        super().__init__(path)
        self._meeting = meeting
        self._session: str | None = session

    def done(self) -> bool:
        return self._session is None or self._meeting.ended(self._session)

    def wait(self, timeout: float | None = None) -> str:
        if self._session is None:
            return self.path
        deadline = None if timeout is None else time.monotonic() + timeout
        while deadline is not None and not self._meeting.ended(self._session):
            if time.monotonic() > deadline:
                raise TimeoutError(f"The checkpoint {self.path} is not complete after {timeout} s; its save goes on.")
            time.sleep(0.005)
        session, self._session = self._session, None
        return raise_outcome(self._meeting.outcome(session), self.path)


def with_main(path: str, meeting: Meeting, session: str) -> Save:
    """The save that the main process does in its background, as another rank sees it."""
    return _OfMain(path, meeting, session)


def raise_outcome(outcome: dict[str, Any], path: str) -> str:
    """``path``, or the error that the main process told.

    Raises:
        CheckpointError: the main process could not write the checkpoint.
    """
    if outcome.get("error"):
        raise CheckpointError(f"The main process could not write the checkpoint {path}: {outcome['error']}")
    return path
