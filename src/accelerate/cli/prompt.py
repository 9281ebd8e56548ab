"""Questions in a terminal: a list to move in with the arrow keys, a line to type, yes or no."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Prompt", "TerminalPrompt"]

UP, DOWN, ENTER, OTHER = "up", "down", "enter", ""


class Prompt(Protocol):
    """Who answers."""

    def select(self, question: str, choices: Sequence[tuple[str, str]], default: str) -> str:
        """One of ``choices`` (value, label); gives the value."""

    def text(self, question: str, default: str, check: Callable[[str], str | None]) -> str:
        """A line; ``check`` gives what is wrong with it, or None."""

    def confirm(self, question: str, default: bool) -> bool:
        """Yes or no."""


@contextmanager
def _raw_keys() -> Iterator[Callable[[], str]]:
    """Reads single keys while the block runs."""
    if os.name == "nt":
        import msvcrt

        def windows() -> str:
            key = msvcrt.getwch()  # type: ignore[attr-defined]
            if key in ("\x00", "\xe0"):
                return {"H": UP, "P": DOWN}.get(msvcrt.getwch(), OTHER)  # type: ignore[attr-defined]
            return _meaning(key)

        yield windows
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def posix() -> str:
        key = os.read(descriptor, 1).decode(errors="replace")
        if key != "\x1b":
            return _meaning(key)
        return {"[A": UP, "[B": DOWN, "OA": UP, "OB": DOWN}.get(os.read(descriptor, 2).decode(errors="replace"), OTHER)

    try:
        tty.setcbreak(descriptor)
        yield posix
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _meaning(key: str) -> str:
    if key in ("", "\x04"):
        raise EOFError
    if key == "\x03":
        raise KeyboardInterrupt
    return {"\r": ENTER, "\n": ENTER, "k": UP, "j": DOWN}.get(key, key)


class TerminalPrompt:
    """Asks on standard output and reads standard input."""

    def select(self, question: str, choices: Sequence[tuple[str, str]], default: str) -> str:
        """One of ``choices``, by arrow keys, by number or by Enter for the one that is marked."""
        values = [value for value, _ in choices]
        at = values.index(default) if default in values else 0
        sys.stdout.write(f"? {question}  (arrow keys, Enter)\n")
        with _raw_keys() as read:
            self._draw(choices, at)
            while True:
                key = read()
                if key == ENTER:
                    break
                if key == UP:
                    at = (at - 1) % len(choices)
                elif key == DOWN:
                    at = (at + 1) % len(choices)
                elif key.isdigit() and 1 <= int(key) <= len(choices):
                    at = int(key) - 1
                sys.stdout.write(f"\x1b[{len(choices)}F")
                self._draw(choices, at)
        # the list gives way to the answer
        sys.stdout.write(f"\x1b[{len(choices) + 1}F\x1b[J? {question}  {choices[at][1]}\n")
        sys.stdout.flush()
        return values[at]

    @staticmethod
    def _draw(choices: Sequence[tuple[str, str]], at: int) -> None:
        for number, (_, label) in enumerate(choices):
            mark = "\x1b[36m❯ " if number == at else "  "
            sys.stdout.write(f"\x1b[2K{mark}{label}\x1b[0m\n")
        sys.stdout.flush()

    def text(self, question: str, default: str, check: Callable[[str], str | None]) -> str:
        """A line; an empty one is the default. Asks again with the reason while it cannot be used."""
        while True:
            shown = f" [{default}]" if default else ""
            answer = input(f"? {question}{shown} ").strip() or default
            wrong = check(answer)
            if wrong is None:
                return answer
            sys.stdout.write(f"  {wrong}\n")

    def confirm(self, question: str, default: bool) -> bool:
        """Yes or no; an empty line is the default."""
        words = {"y": True, "yes": True, "n": False, "no": False, "": default}
        while True:
            answer = input(f"? {question} [{'Y/n' if default else 'y/N'}] ").strip().lower()
            if answer in words:
                return words[answer]
            sys.stdout.write("  Answer y or n.\n")
