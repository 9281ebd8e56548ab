"""Who takes part in a save, found out without a collective call.

Programs call ``save_state`` on every rank, and programs call it on the main process alone while the others already wait
in the next collective call. Both must work where the state is replicated, so ranks meet over the store that formed the
group: each one leaves its part there and waits to be counted; the main process counts those who come, for a while.

Keys: ``here/<rank>`` is ``open:<seq>:<clock>``, then ``claimed:<session>`` or ``withdrawn``; ``part/<rank>/<seq>`` is
what the rank brought; ``call/<session>`` what the main process decided; ``done/<session>`` how it ended; ``last`` the
session that was counted last, and its clock.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from accelerate.errors import CheckpointError, RankLeftError

__all__ = ["Attendance", "Board", "Late", "Meeting", "StoreBoard"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Attendance:
    """The ranks that came to one save, with what each brought, and those that did not come."""

    session: int
    parts: dict[int, bytes]
    missing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """The main process had counted, and gone on without this rank."""

    session: int


@dataclass(slots=True)
class Meeting:
    """One rank's side of every save.

    patience: seconds a rank waits for another one that was counted. gone: the ranks that left the job, and how.
    """

    board: Board
    rank: int
    size: int
    patience: float = 1800.0
    gone: Callable[[], dict[int, str]] = dict
    _session: int = 0
    _seq: int = 0
    _absent: set[int] = field(default_factory=set)
    _clock: str = ""

    def at(self, clock: str) -> None:
        """Says at which point of the program this rank is: the same text on every rank that is at the same point."""
        self._clock = clock

    # The main process

    def count(self, grace: float) -> Attendance:
        """Rank 0: waits until every rank has come, at most ``grace`` seconds, and takes what they brought.

        A rank that stayed away last time is waited for a tenth of it: the program saves on the main process alone.
        """
        self._session += 1
        parts: dict[int, bytes] = {}
        waiting = set(range(1, self.size))
        start = time.monotonic()

        def everybody() -> bool:
            for rank in sorted(waiting):
                part = self._claim(rank)
                if part is not None:
                    parts[rank] = part
                    waiting.discard(rank)
            return not waiting or (waiting <= self._absent and time.monotonic() - start > grace / 10)

        self._poll(everybody, grace)
        self._absent = waiting
        self.board.set("last", json.dumps([self._session, self._clock]).encode())
        return Attendance(session=self._session, parts=parts, missing=tuple(sorted(waiting)))

    def _claim(self, rank: int) -> bytes | None:
        here = self.board.get(f"here/{rank}")
        if here is None or not here.startswith(b"open:"):
            return None
        seq = here.split(b":", 2)[1].decode()
        if not self.board.swap(f"here/{rank}", here, f"claimed:{self._session}".encode()):
            return None
        part = self.board.get(f"part/{rank}/{seq}")
        self.board.drop(f"part/{rank}/{seq}")
        return part

    def tell(self, decision: dict[str, Any]) -> None:
        """Rank 0: gives those who were counted what was decided (JSON values)."""
        self.board.set(f"call/{self._session}", json.dumps(decision).encode())

    def end(self, session: int, outcome: dict[str, Any]) -> None:
        """Rank 0: tells how a save ended."""
        self.board.set(f"done/{session}", json.dumps(outcome).encode())
        for old in (f"call/{session - 4}", f"done/{session - 4}"):
            self.board.drop(old)

    # The others

    def come(self, part: bytes) -> Late | int:
        """Brings ``part`` and waits to be counted; the session this rank is in, or that it came too late for one.

        Raises:
            CheckpointError: the main process did not save within the patience.
        """
        self._seq += 1
        here = f"open:{self._seq}:{self._clock}".encode()
        self.board.set(f"part/{self.rank}/{self._seq}", part)
        self.board.set(f"here/{self.rank}", here)
        found: list[Late | int] = []

        def counted() -> bool:
            now = self.board.get(f"here/{self.rank}") or b""
            if now.startswith(b"claimed:"):
                found.append(int(now.split(b":")[1]))
            elif (session := self._missed()) is not None and self.board.swap(f"here/{self.rank}", here, b"withdrawn"):
                self.board.drop(f"part/{self.rank}/{self._seq}")
                found.append(Late(session=session))
            return bool(found)

        if not self._poll(counted, self.patience, needed=0):
            self.board.swap(f"here/{self.rank}", here, b"withdrawn")
            raise CheckpointError(
                f"Rank {self.rank} is in save_state, but the main process did not call it within {self.patience:g} s. "
                "Call save_state on every rank, or on the main process alone where the state is replicated."
            )
        result = found[0]
        self._session = result.session if isinstance(result, Late) else result
        return result

    def _missed(self) -> int | None:
        """The session that the main process counted at this very point of the program without this rank."""
        last = self.board.get("last")
        if last is None:
            return None
        session, clock = json.loads(last)
        return int(session) if session > self._session and clock == self._clock else None

    def decision(self, session: int) -> dict[str, Any]:
        """What the main process decided for a session. Raises CheckpointError where it does not say."""
        return self._read(f"call/{session}", session, "decide where to save")

    def outcome(self, session: int) -> dict[str, Any]:
        """How a session ended, once it has. Raises CheckpointError where the main process does not say."""
        return self._read(f"done/{session}", session, "finish the checkpoint")

    def ended(self, session: int) -> bool:
        """Whether a session has ended."""
        return self.board.get(f"done/{session}") is not None

    def _read(self, key: str, session: int, task: str) -> dict[str, Any]:
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

    def leave(self, session: int, what: str, value: bytes) -> None:
        """Leaves something for rank 0 in a session."""
        self.board.set(f"{what}/{session}/{self.rank}", value)

    def collect(self, session: int, what: str, ranks: Sequence[int]) -> dict[int, bytes]:
        """Rank 0: what each of ``ranks`` has left. Raises CheckpointError where one does not."""
        found: dict[int, bytes] = {}
        for rank in ranks:
            key = f"{what}/{session}/{rank}"
            if not self._poll(lambda key=key: self.board.get(key) is not None, self.patience, needed=rank):  # type: ignore[misc]
                raise CheckpointError(f"Rank {rank} did not finish its part of the checkpoint in {self.patience:g} s.")
            found[rank] = self.board.get(key) or b""
            self.board.drop(key)
        return found

    def _poll(self, ready: Callable[[], bool], seconds: float, needed: int | None = None) -> bool:
        """Waits until ``ready``; says whether it became so. ``needed``: the rank that has to be there for it.

        Raises:
            RankLeftError: that rank has left the job.
        """
        start = looked = time.monotonic()
        pause = _FIRST_PAUSE
        while not ready():
            now = time.monotonic()
            if now - start >= seconds:
                return False
            if needed is not None and now - looked > _LOOK:
                looked = now
                gone = self.gone()
                if needed in gone and not ready():
                    raise RankLeftError(
                        f"Rank {self.rank} is in save_state and waits for rank {needed}, which left: {gone[needed]}."
                    )
            time.sleep(min(pause, start + seconds - now))
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        return True
