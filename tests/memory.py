"""How much memory a stretch of a test takes at its highest, as the system sees it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Growth", "growth"]

_MMAP_THRESHOLD = -3
_RESET_PEAK = "5"


@dataclass
class Growth:
    """``bytes`` is the highest resident memory above that of the start, known once the block has ended."""

    bytes: int = -1


@contextmanager
def growth() -> Iterator[Growth]:
    """Measures what this process holds at most within the block. Linux; meant for a process that is forked for it."""
    # Freed tensors go back to the system at once, or the peak would be that of the allocator's own keeping.
    assert ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 128 << 10) == 1
    Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    before, measured = _status("VmRSS"), Growth()
    yield measured
    measured.bytes = _status("VmHWM") - before


def _status(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024
