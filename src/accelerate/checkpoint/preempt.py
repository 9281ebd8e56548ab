"""Being told to stop: signals set a flag, and the ranks agree on the step at which they see it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

from accelerate import env, runtime
from accelerate.comm import operations
from accelerate.errors import ConfigError

__all__ = ["StopFlag", "signals_asked_for"]

_DEFAULT = "SIGTERM,SIGUSR1"
_VARIABLE = "ACCELERATE_PREEMPTION_SIGNALS"


def signals_asked_for(names: Iterable[str] | None = None) -> list[signal.Signals]:
    """The signals that ask a run to stop: ``names``, else those in the environment, else SIGTERM and SIGUSR1.

    Raises:
        ConfigError: this system has no such signal.
    """
    asked = list(names) if names is not None else (env.get(_VARIABLE) or _DEFAULT).split(",")
    found = []
    for name in (word.strip().upper() for word in asked if word.strip()):
        full = name if name.startswith("SIG") else f"SIG{name}"
        number = getattr(signal, full, None)
        if number is None:
            if names is None and env.get(_VARIABLE) is None:
                continue  # Windows has no SIGUSR1
            raise ConfigError(f"{name!r} is not a signal of this system; use names such as SIGTERM or SIGUSR1.")
        found.append(number)
    return found


class StopFlag:
    """Raised by a signal, or by hand. Reading it agrees over the ranks."""

    def __init__(self) -> None:
        self.raised = False
        self._before: dict[int, Any] = {}

    def watch(self, signals: Iterable[signal.Signals]) -> bool:
        """Handles ``signals`` from now on; says whether this thread can (only the main thread can).

        A handler that the program had installed itself is called as well.
        """
        if threading.current_thread() is not threading.main_thread():
            return False
        for number in signals:
            if number not in self._before:
                self._before[number] = signal.signal(number, self._handle)
        return True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.raised = True
        before = self._before.get(number)
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)

    def restore(self) -> None:
        """Puts back the handlers that were there before."""
        for number, before in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, before if before is not None else signal.SIG_DFL)
        self._before.clear()

    def agreed(self) -> bool:
        """Collective. Whether the flag is raised on any rank; once it was, it stays so."""
        if runtime.find() is not None:
            self.raised = operations.any_rank(self.raised)
        return self.raised
