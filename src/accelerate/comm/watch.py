"""Telling a rank that waits in vain whom it waits for.

A background thread looks once a second whether another rank asks; then it writes down which call this rank is in, at
which line of user code, and for how long it has not moved. A rank that has waited for a while reads these notes and
decides: a rank that left will never come, ranks that all wait wait for each other, and a rank that computes is merely
slow and is waited for.

Times in seconds. The limit is 30 by default; ACCELERATE_HANG_TIMEOUT changes it, 0 means no limit.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from types import TracebackType
from typing import Any, NoReturn

from accelerate import env, runtime
from accelerate.comm.board import Board, Note
from accelerate.comm.stillness import Stillness
from accelerate.comm.where import raised_at, user_line
from accelerate.errors import EnvironmentValueError, RankLeftError

__all__ = ["DEFAULT_LIMIT", "Watch", "limit", "watched"]

logger = logging.getLogger(__name__)

DEFAULT_LIMIT = 30.0
POLL = 1.0
ANSWER = 3.0
_ADVICE = (
    "Every rank has to make the same calls in the same order: give each the same number of batches (even_batches=True) "
    "or use join_uneven_inputs(), and let no rank leave a loop alone. ACCELERATE_HANG_TIMEOUT sets how long ranks wait."
)


def limit() -> float:
    """How long a rank waits before it finds out whether it waits in vain.

    Raises:
        EnvironmentValueError: ACCELERATE_HANG_TIMEOUT is not a number.
    """
    text = env.get("ACCELERATE_HANG_TIMEOUT")
    try:
        return float(text) if text else DEFAULT_LIMIT
    except ValueError as error:
        raise EnvironmentValueError(
            f"Environment variable ACCELERATE_HANG_TIMEOUT={text!r} has to be a number of seconds; 0 means no limit."
        ) from error


class Watch:
    """One rank's watch over the others of its group.

    ``call`` is the collective call this rank is in (None outside): setting it is all that a call costs. ``topic`` names
    something that ranks go through together, such as the loop over a loader; see :meth:`leave`.
    """

    def __init__(self, rank: int, size: int, store: Any, limit: float) -> None:
        self.rank = rank
        self.size = size
        self.limit = limit
        self.call: str | None = None
        self.topic: str | None = None
        self._broken: str | None = None
        self._waiting: float | None = None
        self._board = Board(rank, size, store)
        self._stillness = Stillness(threading.get_ident())
        self._process = os.getpid()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="accelerate-watch", daemon=True)
        self._thread.start()
        # Not later: a thread that is inside the store when the interpreter goes down takes the process with it.
        atexit.register(self.close)

    def wait(self, work: Any) -> None:
        """Returns when ``work``, a call of the group, is done.

        Raises:
            RankLeftError: it never will be.
        """
        if self._broken is not None:
            raise RankLeftError(self._broken)
        self._waiting = time.monotonic()
        try:
            self._wait(work, self._waiting)
        finally:
            self._waiting = None

    def _wait(self, work: Any, started: float) -> None:
        noticed = False
        patience = min(ANSWER, self.limit) if self.limit > 0 else ANSWER
        while not self._done(work, patience):
            patience = POLL
            gone = self._board.gone(self.topic)
            if gone:
                self._fail(f"waits in {self._place()} for {_ranks(gone)}, which left", self._ask(), gone)
            waited = time.monotonic() - started
            if self.limit <= 0 or waited < self.limit - POLL:
                continue
            notes = self._ask()
            if self._done(work, 0.0):
                return
            waiting = {rank: note for rank, note in notes.items() if note.still >= self.limit / 2}
            if len(waiting) == self.size - 1:
                missing = {rank: "is in another call" for rank, note in waiting.items() if note.call != self.call}
                whom = _ranks(missing or waiting)
                self._fail(f"has waited {waited:.0f} s in {self._place()} for {whom}; all ranks wait", notes, missing)
            if not noticed:
                noticed = True
                logger.warning(
                    "Rank %d has waited %.0f s in %s and goes on waiting for ranks that are busy:\n%s",
                    *(self.rank, waited, self._place(), self._table(notes, {})),
                )

    def lost(self, error: BaseException) -> RankLeftError:
        """The error to raise in place of ``error``, with which the backend reported a broken connection."""
        if isinstance(error, RankLeftError):
            return error
        notes: dict[int, Note] = {}
        missing: dict[int, str] = {}
        try:
            notes = self._ask()
            missing = self._board.gone(None) or {
                rank: "does not answer any more" for rank in self._board.others if rank not in notes
            }
        except Exception:  # the store went away with the rank that kept it
            missing = {0: "does not answer any more, and kept the job's store"} if self.rank else {}
        whom = _ranks(missing) if missing else "another rank"
        line = raised_at(error)
        place = f"{self.call or 'a collective call'} at {user_line() if line == 'unknown place' else line}"
        if "Timed out" in str(error):
            what = f"waited for {whom} in {place} for as long as InitProcessGroupKwargs(timeout=...) allows"
        else:
            what = f"lost its connection to {whom} in {place}"
        return self._failure(what, notes, missing)

    def leave(self, topic: str) -> None:
        """Tells the others that this rank has left ``topic`` before its end and takes no further part in it. Whoever
        waits with that ``topic`` set raises within seconds."""
        self._board.leave(topic, user_line())

    def gone(self) -> dict[int, str]:
        """The other ranks that left the job, and how."""
        return self._board.gone(None)

    def notes(self) -> dict[int, Note]:
        """Where the other ranks are, as far as they say within a few seconds."""
        return self._ask()

    def close(self, why: str | None = None) -> None:
        """Tells the others that this rank leaves the job, and stops watching. Without ``why``: as its program ends."""
        if self._stop.is_set() or os.getpid() != self._process:
            return
        self._stop.set()
        atexit.unregister(self.close)
        self._thread.join(ANSWER)
        if why is None:
            raised = getattr(sys, "last_value", None)
            why = "finished its program" if raised is None else f"raised {type(raised).__name__}: {raised}"
        try:
            self._board.go(why)
        except Exception:  # the store went away first: nobody is left to be told
            return

    def _done(self, work: Any, patience: float) -> bool:
        """Whether ``work`` is done after at most ``patience`` seconds."""
        try:
            if patience > 0:
                work.wait(timedelta(seconds=patience))
            elif work.is_completed():
                work.wait()
            else:
                return False
        except RuntimeError as error:
            if not work.is_completed():
                return False
            if patience > 0:  # it may have completed after its time was up
                return self._done(work, 0.0)
            raise self.lost(error) from error
        return True

    def _ask(self) -> dict[int, Note]:
        """The notes of the other ranks, as far as they come within a few seconds."""
        number = self._board.ask()
        deadline = time.monotonic() + ANSWER
        while True:
            notes = self._board.answers(number)
            if len(notes) == self.size - 1 or time.monotonic() > deadline:
                return notes
            time.sleep(0.1)

    def _place(self) -> str:
        return f"{self.call or 'a collective call'} at {user_line()}"

    def _fail(self, what: str, notes: dict[int, Note], missing: dict[int, str]) -> NoReturn:
        raise self._failure(what, notes, missing)

    def _failure(self, what: str, notes: dict[int, Note], missing: dict[int, str]) -> RankLeftError:
        self._broken = f"Rank {self.rank} {what}.\n{self._table(notes, missing)}\n{_ADVICE}"
        return RankLeftError(self._broken)

    def _table(self, notes: dict[int, Note], missing: dict[int, str]) -> str:
        lines = []
        for rank in self._board.others:
            note = notes.get(rank)
            place = "" if note is None else f"in {note.call} at {note.line}" if note.call else f"at {note.line}"
            lines.append(f"  rank {rank}: {'; '.join(filter(None, (missing.get(rank), place))) or 'does not answer'}")
        return "\n".join(lines)

    def _run(self) -> None:
        while not self._stop.wait(POLL):
            still, waiting = self._stillness.measure(self.call is not None), self._waiting
            if waiting is not None:  # the thread moves, but only to look whether its call is done
                still = time.monotonic() - waiting
            try:
                number = self._board.asked()
                if number is not None:
                    line = user_line(self._stillness.frame())
                    self._board.answer(number, Note(call=self.call, line=line, still=still))
            except Exception:  # the store went away: the job ends
                return


def _ranks(ranks: dict[int, Any]) -> str:
    names = ", ".join(str(rank) for rank in ranks)
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"


class _Watched:
    """Says which call this rank is in, and puts a broken connection into words."""

    __slots__ = ("_call", "_watch")

    def __init__(self, watch: Watch, call: str) -> None:
        self._watch = watch
        self._call = call

    def __enter__(self) -> None:
        self._watch.call = self._call

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, RuntimeError) and _is_connection(error):
                raise self._watch.lost(error) from error
        finally:
            self._watch.call = None


def _is_connection(error: BaseException) -> bool:
    text = str(error)
    return any(sign in text for sign in ("Connection closed", "Connection reset", "Broken pipe", "Socket Timeout"))


_UNWATCHED = nullcontext()


def watched(call: str) -> AbstractContextManager[Any]:
    """A block that waits for other ranks in torch's own calls (``backward`` of DDP): others learn that this rank is in
    ``call``, and a connection that breaks inside becomes a RankLeftError that names who left."""
    held = runtime.find()
    watch = None if held is None else getattr(held.collectives, "watch", None)
    return _UNWATCHED if watch is None else _Watched(watch, call)
