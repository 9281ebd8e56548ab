"""What tests of the real command line share: where it is, and how a run of it ended."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ACCELERATE = str(Path(sys.executable).parent / "accelerate")


@dataclass(frozen=True)
class Done:
    """How a launch ended, and what was on its screen: both streams in the order in which they were written.

    ``out`` is the lines that begin with RESULT.
    """

    code: int
    screen: str
    out: str
    seconds: float


Launch = Callable[..., Done]
Script = Callable[[str], str]
