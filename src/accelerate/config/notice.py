"""What a user has to be told once about settings that were translated or left out."""

from __future__ import annotations

import logging

from accelerate import env

__all__ = ["forget_notices", "notice"]

_logger = logging.getLogger("accelerate.config")
_said: set[str] = set()


def notice(text: str) -> None:
    """Logs a warning, once in a process and on the first rank of a job only."""
    if text in _said:
        return
    _said.add(text)
    if env.get("RANK") in (None, "", "0"):
        _logger.warning(text)


def forget_notices() -> None:
    """Lets every notice be given again."""
    _said.clear()
