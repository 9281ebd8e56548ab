"""The real command line, with scripts that the tests write."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launching import ACCELERATE, Done, Launch, Script


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Writes a script and gives its path."""

    def write(text: str) -> str:
        path = tmp_path / "train.py"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Runs ``accelerate launch`` in an empty folder, with temporary files kept in another."""
    (tmp_path / "tmp").mkdir()

    def run(
        *words: object, timeout: float = 100, command: tuple[str, ...] = (ACCELERATE, "launch"), **extra: str
    ) -> Done:
        environ = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), **extra}
        started = time.monotonic()
        # One pipe for both streams, so that what is last on the screen is last in the text.
        done = subprocess.run(
            [*command, *map(str, words)],
            cwd=tmp_path,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        return Done(done.returncode, done.stdout, "\n".join(lines), time.monotonic() - started)

    return run


@pytest.fixture
def left(tmp_path: Path) -> Callable[[], list[str]]:
    """What launches left in the folder for temporary files."""
    return lambda: sorted(path.name for path in (tmp_path / "tmp").iterdir())
