"""Whether a thread has been waiting in the same place, judged from outside."""

from __future__ import annotations

import sys
import time
from types import FrameType

from accelerate.comm.where import is_waiting_place

__all__ = ["Stillness"]

_BUSY = 0.2  # a process that uses a fifth of a processor computes


class Stillness:
    """For how long a thread has stood in one collective call or backward while the process computed nothing."""

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._place: tuple[int, int] | None = None
        self._since = self._looked = time.monotonic()
        self._used = time.process_time()

    def frame(self) -> FrameType | None:
        """The innermost frame of the thread."""
        return sys._current_frames().get(self._thread)

    def measure(self, in_call: bool) -> float:
        """Looks again; the seconds since the thread was last seen to move. ``in_call``: it said that it waits."""
        frame = self.frame()
        now, used = time.monotonic(), time.process_time()
        place = None if frame is None else (id(frame), frame.f_lasti)
        waits = in_call or (frame is not None and is_waiting_place(frame.f_code.co_filename))
        busy = (used - self._used) / max(now - self._looked, 1e-6) > _BUSY
        if place != self._place or busy or not waits:
            self._since = now
        self._place, self._looked, self._used = place, now, used
        return now - self._since
