"""Going ahead in what can only be read from its beginning."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from accelerate import runtime

__all__ = ["run_ahead"]

_SHORT = 1000


def run_ahead(iterator: Iterator[Any], count: int, what: str) -> None:
    """Reads and drops ``count`` entries. The main process shows how far it is, where somebody may be watching."""
    held = runtime.find()
    watched = count >= _SHORT and sys.stderr.isatty() and (held is None or held.topology.is_main)
    if not watched:
        for _ in range(count):
            if next(iterator, iterator) is iterator:
                return
        return
    from rich.console import Console
    from rich.progress import track

    bar = track(range(count), f"Going ahead by {count} {what}", console=Console(stderr=True), transient=True)
    for _ in bar:
        if next(iterator, iterator) is iterator:
            return
