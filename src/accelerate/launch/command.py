"""The command line of one process of a job."""

from __future__ import annotations

import sys
from pathlib import Path

from accelerate.errors import LaunchError
from accelerate.launch.base import Job

__all__ = ["process_command"]

WORKER = str(Path(__file__).with_name("worker.py"))


def process_command(job: Job, *, unbuffered: bool = True) -> tuple[str, ...]:
    """What one rank runs: the program under the worker, or the program itself where it is not Python.

    Raises:
        LaunchError: it is called both a module and a program of its own.
    """
    if not job.python:
        if job.module:
            raise LaunchError(
                "--module and --no_python were both given. A module is run by Python: leave one of them out."
            )
        return (job.program, *job.arguments)
    words = [sys.executable, *(["-u"] if unbuffered else []), WORKER, *(["-m"] if job.module else [])]
    return (*words, job.program, *job.arguments)
