"""What the ranks of a job tell each other about themselves, through its key-value store."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Board", "Note"]


@dataclass(slots=True, kw_only=True)
class Note:
    """What a rank writes down about itself: the collective call it is in (None outside), its line of user code, and for
    how many seconds it has been waiting in the same place."""

    call: str | None
    line: str
    still: float


class Board:
    """One rank's access to the notes of its group.

    Notes are written when somebody asked: a question raises a counter, and each rank answers under the number it saw.
    """

    def __init__(self, rank: int, size: int, store: Any) -> None:
        self.rank = rank
        self.others = [other for other in range(size) if other != rank]
        # A connection of its own: a call that blocks on the job's would block this one too.
        self._store = store.clone() if hasattr(store, "clone") else store
        self._answered = 0

    def ask(self) -> int:
        """Asks every rank for a note; returns the number of the question."""
        return int(self._store.add("question", 1))

    def asked(self) -> int | None:
        """The number of a question that this rank has not answered yet, or None."""
        number = int(self._store.add("question", 0))
        return number if number > self._answered else None

    def answer(self, number: int, note: Note) -> None:
        """Writes this rank's note."""
        self._store.set(f"note/{self.rank}", json.dumps([number, asdict(note)]))
        self._answered = number

    def answers(self, number: int) -> dict[int, Note]:
        """The notes of the other ranks that answered question ``number`` or a later one."""
        found = {}
        for rank in self.others:
            if self._store.check([f"note/{rank}"]):
                answered, note = json.loads(self._store.get(f"note/{rank}"))
                if answered >= number:
                    found[rank] = Note(**note)
        return found

    def go(self, why: str) -> None:
        """Tells the others that this rank leaves the job."""
        self._store.set(f"gone/{self.rank}", why[:2000])

    def leave(self, topic: str, where: str) -> None:
        """Tells the others that this rank has left ``topic`` before its end."""
        self._store.set(f"left/{topic}/{self.rank}", where)

    def gone(self, topic: str | None) -> dict[int, str]:
        """The other ranks that left the job, or ``topic``, and how."""
        found = {}
        for rank in self.others:
            if self._store.check([f"gone/{rank}"]):
                found[rank] = self._store.get(f"gone/{rank}").decode()
            elif topic is not None and self._store.check([f"left/{topic}/{rank}"]):
                found[rank] = f"left {topic} at {self._store.get(f'left/{topic}/{rank}').decode()}"
        return found
