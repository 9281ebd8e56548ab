"""A child that is waited for, and that ends when this process is told to end."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

__all__ = ["run_child"]


def run_child(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs ``command`` with this process's streams and returns its code: negative where a signal ended it."""
    import subprocess

    child = subprocess.Popen(command, env=dict(environ))
    with _passing_on(child):
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                # A terminal sends Ctrl-C to the child too, which is the one that answers; nobody else does.
                if not sys.stdin or not sys.stdin.isatty():
                    child.send_signal(signal.SIGINT)


@contextmanager
def _passing_on(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """While it runs, signals that would end this process and leave the child alone go to the child."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def send(number: int, frame: Any) -> None:
        child.send_signal(number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = [signal.signal(number, send) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
