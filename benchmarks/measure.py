"""Running commands and taking their time."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Interpreter", "Ran", "Samples", "run", "take_turns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python that has some implementation installed. ``name`` is the one of the table's column."""

    name: str
    python: str
    own: bool = False

    def script(self, name: str) -> str:
        """The path of a command that is installed beside the interpreter."""
        return str(Path(self.python).parent / name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One run: seconds on the clock, seconds of processor time of the whole process tree, and the standard output."""

    wall: float
    cpu: float
    out: str

    def data(self) -> dict[str, list[float]]:
        """What a worker reports: the last line, as JSON."""
        found: dict[str, list[float]] = json.loads(self.out.strip().splitlines()[-1])
        return found


@dataclass(slots=True)
class Samples:
    """Times of one thing, in seconds."""

    values: list[float]

    @property
    def median(self) -> float:
        """The middle of the sorted values."""
        return statistics.median(self.values)

    @property
    def best(self) -> float:
        """The smallest value: what remains when the machine does nothing else."""
        return min(self.values)


def run(command: Sequence[str]) -> Ran:
    """Runs a command in an empty folder, with one thread a process.

    Raises:
        RuntimeError: it failed; what it wrote is in the message.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    # A program is compiled once in its life: without its cache every run would pay for that again.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=err)
        # wait4 gives the processor time of this command and of all that it waited for, and of nothing else.
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        text, errors = out.read().decode(errors="replace"), err.read().decode(errors="replace")
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} exited with {process.returncode}:\n{text}\n{errors}")
    return Ran(wall=wall, cpu=usage.ru_utime + usage.ru_stime, out=text)


def take_turns(
    commands: dict[tuple[Interpreter, str], Sequence[str]], repeats: int, warmup: int = 1
) -> dict[Interpreter, dict[str, list[Ran]]]:
    """Runs every command ``repeats`` times, in turns; the first ``warmup`` rounds are not kept.

    Another implementation than this one that fails a command is left out, with a line on standard error.
    """
    found: dict[Interpreter, dict[str, list[Ran]]] = {}
    out: set[Interpreter] = set()
    for turn in range(warmup + repeats):
        for (who, name), command in commands.items():
            if who in out:
                continue
            try:
                ran = run(command)
            except RuntimeError as error:
                if who.own:
                    raise
                print(f"{who.name} is left out: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
                out.add(who)
                found.pop(who, None)
                continue
            if turn >= warmup:
                found.setdefault(who, {}).setdefault(name, []).append(ran)
    return found
