"""Who takes part in a save, found out without a collective call.

Programs call ``save_state`` on every rank, and programs call it on the main process alone while the others already wait
in the next collective call. Both must work where the state is replicated, so ranks meet over the store that formed the
group: each one leaves its part there and waits to be counted; the main process counts those who come, for a while.

Keys: ``here/<rank>`` is ``open:<seq>``, then ``claimed:<session>`` or ``withdrawn``; ``part/<rank>/<seq>`` is what the
rank brought; ``call/<session>`` what the main process decided; ``done/<session>`` how it ended; ``last`` the session
that was counted last, and at which point of the program.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from accelerate.errors import CheckpointError, RankLeftError

__all__ = ["Attendance", "Board", "Late", "Meeting", "StoreBoard", "Watching"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.02
_LOOK = 1.0  # seconds between looks at who left


class Board(Protocol):
    """Small values that every rank can read and write."""

    def get(self, key: str) -> bytes | None: ...

    def set(self, key: str, value: bytes) -> None: ...

    def swap(self, key: str, expected: bytes, value: bytes) -> bool:
        """Sets ``key`` if it still is ``expected``; says whether it did."""
        ...

    def drop(self, key: str) -> None: ...


class StoreBoard:
    """A board on a ``torch.distributed`` store."""

    def __init__(self, store: Any) -> None:
        # A connection of its own: a call that blocks on the job's would block this one too.
        self._store = store.clone() if hasattr(store, "clone") else store

    def get(self, key: str) -> bytes | None:
        return bytes(self._store.get(key)) if self._store.check([key]) else None

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def swap(self, key: str, expected: bytes, value: bytes) -> bool:
        return bytes(self._store.compare_set(key, expected.decode(), value.decode())) == value

    def drop(self, key: str) -> None:
        try:
            self._store.delete_key(key)
        except (RuntimeError, NotImplementedError):
            pass  # some stores cannot forget, and keep a few hundred bytes


class Watching(Protocol):
    """What a rank that waits can find out about the others.

    gone: those that left the job, and how. elsewhere: where the main process is, if it waits in another call; asked
    after ``doubt`` seconds.
    """

    doubt: float
    gone: Callable[[], dict[int, str]]

    def elsewhere(self) -> str | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Attendance:
    """The ranks that came to one save, with what each brought, and those that did not come."""

    session: str
    parts: dict[int, bytes]
    missing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Late:
    """The main process had counted, and gone on without this rank."""


@dataclass(slots=True, kw_only=True)
class Meeting:
    """One rank's side of every save.

    patience: seconds a rank waits for another one. late: seconds after which a rank that the main process counted
    without, at this very point of the program, takes it that it was meant to be there.
    """

    board: Board
    rank: int
    size: int
    patience: float = 1800.0
    late: float = 3.0
    watch: Callable[[], Watching | None] = lambda: None
    _token: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    _count: int = 0
    _seq: int = 0
    _session: str = ""
    _absent: set[int] = field(default_factory=set)
    _clock: str = ""

    def open(self) -> None:
        """Takes back what an earlier process of this rank may have left."""
        self.board.set(f"here/{self.rank}", b"idle")

    def at(self, clock: str) -> None:
        """Says at which point of the program this rank is: the same text on every rank that is at the same point."""
        self._clock = clock

    # The main process

    def count(self, grace: float) -> Attendance:
        """Rank 0: waits until every rank has come, at most ``grace`` seconds, and takes what they brought.

        A rank that stayed away last time is waited for a quarter of it: the program saves on the main process alone.
        """
        self._count += 1
        self._session = f"{self._token}-{self._count}"
        parts: dict[int, bytes] = {}
        waiting = set(range(1, self.size))
        start = time.monotonic()

        def everybody() -> bool:
            for rank in sorted(waiting):
                part = self._claim(rank)
                if part is not None:
                    parts[rank] = part
                    waiting.discard(rank)
            return not waiting or (waiting <= self._absent and time.monotonic() - start > grace / 4)

        self._poll(everybody, grace)
        self._absent = waiting
        self.board.set("last", json.dumps([self._session, self._clock]).encode())
        return Attendance(session=self._session, parts=parts, missing=tuple(sorted(waiting)))

    def _claim(self, rank: int) -> bytes | None:
        here = self.board.get(f"here/{rank}")
        if here is None or not here.startswith(b"open:"):
            return None
        seq = here.split(b":")[1].decode()
        if not self.board.swap(f"here/{rank}", here, f"claimed:{self._session}".encode()):
            return None
        part = self.board.get(f"part/{rank}/{seq}")
        self.board.drop(f"part/{rank}/{seq}")
        return part

    def tell(self, decision: dict[str, Any]) -> None:
        """Rank 0: gives those who were counted what was decided (JSON values)."""
        self.board.set(f"call/{self._session}", json.dumps(decision).encode())

    def end(self, session: str, outcome: dict[str, Any]) -> None:
        """Rank 0: tells how a save ended."""
        self.board.set(f"done/{session}", json.dumps(outcome).encode())
        token, _, count = session.rpartition("-")
        for old in ("call", "done"):
            self.board.drop(f"{old}/{token}-{int(count) - 4}")

    # The others

    def come(self, part: bytes) -> Late | str:
        """Brings ``part`` and waits to be counted; the session this rank is in, or that it came too late for one.

        Raises:
            CheckpointError: the main process did not save within the patience.
            RankLeftError: it never will.
        """
        self._seq += 1
        here = f"open:{self._seq}".encode()
        self.board.set(f"part/{self.rank}/{self._seq}", part)
        self.board.set(f"here/{self.rank}", here)
        found: list[Late | str] = []
        start = time.monotonic()

        def counted() -> bool:
            now = self.board.get(f"here/{self.rank}") or b""
            if now.startswith(b"claimed:"):
                self._session = now.split(b":")[1].decode()
                found.append(self._session)
            elif time.monotonic() - start > self.late and self._missed() and self._withdraw(here):
                found.append(Late())
            return bool(found)

        if not self._poll(counted, self.patience, needed=0):
            self._withdraw(here)
            raise CheckpointError(
                f"Rank {self.rank} is in save_state, but the main process did not call it within {self.patience:g} s. "
                "Call save_state on every rank, or on the main process alone where the state is replicated."
            )
        return found[0]

    def _withdraw(self, here: bytes) -> bool:
        if not self.board.swap(f"here/{self.rank}", here, b"withdrawn"):
            return False
        self.board.drop(f"part/{self.rank}/{self._seq}")
        return True

    def _missed(self) -> bool:
        """Whether the main process counted at this very point of the program without this rank."""
        last = self.board.get("last")
        if last is None:
            return False
        session, clock = json.loads(last)
        if session == self._session or clock != self._clock:
            return False
        self._session = session
        return True

    def decision(self, session: str) -> dict[str, Any]:
        """What the main process decided for a session. Raises CheckpointError where it does not say."""
        return self._read(f"call/{session}", session, "decide where to save")

    def outcome(self, session: str) -> dict[str, Any]:
        """How a session ended, once it has. Raises CheckpointError where the main process does not say."""
        return self._read(f"done/{session}", session, "finish the checkpoint")

    def ended(self, session: str) -> bool:
        """Whether a session has ended."""
        return self.board.get(f"done/{session}") is not None

    def _read(self, key: str, session: str, task: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        def there() -> bool:
            for name in (key, f"done/{session}"):
                value = self.board.get(name)
                if value is not None:
                    found.append(json.loads(value))
                    return True
            return False

        if not self._poll(there, self.patience, needed=0):
            raise CheckpointError(
                f"Rank {self.rank} waited {self.patience:g} s for the main process to {task}. "
                "Look there for an error, or for a disk that does not answer."
            )
        return found[0]

    # Both

    def leave(self, session: str, what: str, value: bytes) -> None:
        """Leaves something for rank 0 in a session."""
        self.board.set(f"{what}/{session}/{self.rank}", value)

    def collect(self, session: str, what: str, ranks: Sequence[int]) -> dict[int, bytes]:
        """Rank 0: what each of ``ranks`` has left.

        Raises:
            CheckpointError: one does not within the patience.
            RankLeftError: one never will.
        """
        found: dict[int, bytes] = {}
        for rank in ranks:
            key = f"{what}/{session}/{rank}"

            def there(key: str = key) -> bool:
                return self.board.get(key) is not None

            if not self._poll(there, self.patience, needed=rank):
                raise CheckpointError(f"Rank {rank} did not finish its part of the checkpoint in {self.patience:g} s.")
            found[rank] = self.board.get(key) or b""
            self.board.drop(key)
        return found

    def _poll(self, ready: Callable[[], bool], seconds: float, needed: int | None = None) -> bool:
        """Waits until ``ready``; says whether it became so. ``needed``: the rank that has to be there for it.

        Raises:
            RankLeftError: that rank has left the job, or waits elsewhere.
        """
        start = looked = time.monotonic()
        pause = _FIRST_PAUSE
        while not ready():
            now = time.monotonic()
            if now - start >= seconds:
                return False
            if needed is not None and now - looked > _LOOK:
                looked = now
                where = self._lost(needed, now - start)
                if where is not None and not ready():
                    raise RankLeftError(
                        f"Rank {self.rank} is in save_state and waits for rank {needed}, which {where}. Call it "
                        "on every rank, or on the main process alone where the state is replicated."
                    )
            time.sleep(min(pause, start + seconds - now))
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        return True

    def _lost(self, needed: int, waited: float) -> str | None:
        watch = self.watch()
        if watch is None:
            return None
        gone = watch.gone()
        if needed in gone:
            return f"left: {gone[needed]}"
        return watch.elsewhere() if needed == 0 and waited > watch.doubt else None
