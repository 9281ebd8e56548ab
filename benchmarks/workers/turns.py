"""Taking times inside one process, in turns. The workers import it from their own folder, under any interpreter."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable


def take_turns(parts: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Runs each part once a round, ``rounds`` times, after three rounds to warm up; seconds of each run.

    Under the part's name is the time on the clock; under its name with "/cpu" this process's processor time, which
    other programs on the machine hardly change.
    """
    taken: dict[str, list[float]] = {name + kind: [] for name in parts for kind in ("", "/cpu")}
    names = list(parts)
    gc.collect()
    gc.disable()
    for turn in range(rounds + 3):
        for name in names if turn % 2 else reversed(names):
            wall, cpu = time.perf_counter(), time.process_time()
            parts[name]()
            if turn >= 3:
                taken[name].append(time.perf_counter() - wall)
                taken[name + "/cpu"].append(time.process_time() - cpu)
        gc.collect()
    gc.enable()
    return taken


def report(taken: dict[str, list[float]]) -> None:
    """Prints the times, once a job."""
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(taken), flush=True)
