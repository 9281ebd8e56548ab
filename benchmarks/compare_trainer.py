"""The same small jobs of transformers' Trainer under this implementation and under another one, number by number.

    python -m benchmarks.compare_trainer --against reference=/path/to/python

The other interpreter needs transformers of the same version. Losses, gradient norms, rates, metrics, the sentences each
rank was shown and the sum of the trained weights are compared; floats to ``--within`` relative. Exit status 1 where
something differs. Beside it the time of ``train()`` here over that there, of the better of ``--repeats`` runs each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.__main__ import interpreter

EXPLAINED = {
    "2 x 1, no seedable sampler": (
        "without the seedable sampler, ranks here agree on what plain torch would draw, so that the order is that of "
        "one process"
    ),
}
WORKER = Path(__file__).parent / "workers" / "trainer.py"


def run(python: str, folder: Path, name: str) -> dict[str, Any]:
    """What every job told under one interpreter."""
    out = folder / f"{name}.json"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [python, str(WORKER), str(out)], env=environment, cwd=folder, capture_output=True, text=True, timeout=1800
    )
    if done.returncode:
        raise SystemExit(f"{name} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    told: dict[str, Any] = json.loads(out.read_text())
    return told


def differences(ours: Any, theirs: Any, within: float, path: str = "") -> Iterator[str]:
    """Where two nestings differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in sorted(ours.keys() | theirs.keys()):
            if name not in ours or name not in theirs:
                yield f"{path}/{name}: only {'there' if name in theirs else 'here'}"
            else:
                yield from differences(ours[name], theirs[name], within, f"{path}/{name}")
    elif isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            yield f"{path}: {len(ours)} here, {len(theirs)} there"
        for index, (a, b) in enumerate(zip(ours, theirs, strict=False)):
            yield from differences(a, b, within, f"{path}/{index}")
    elif isinstance(ours, float) and isinstance(theirs, float):
        if abs(ours - theirs) > within * max(1.0, abs(theirs)):
            yield f"{path}: {ours!r} here, {theirs!r} there"
    elif ours != theirs:
        yield f"{path}: {ours!r} here, {theirs!r} there"


def _seconds(ranks: list[dict[str, Any]]) -> float:
    """The slowest rank's time, which leaves what is compared."""
    return max(rank.pop("seconds") for rank in ranks)


def main() -> int:
    """Compares, prints, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=interpreter, required=True, metavar="NAME=PYTHON")
    parser.add_argument("--within", type=float, default=1e-6)
    parser.add_argument("--repeats", type=int, default=1, help="runs of each, in turn; for the times")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep what each told here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        runs = [
            (run(sys.executable, folder, "here"), run(given.against.python, folder, given.against.name))
            for _ in range(given.repeats)
        ]
    times = [{name: min(_seconds(told[name]) for told in side) for name in side[0]} for side in zip(*runs, strict=True)]
    here, there = runs[0]
    worst = 0
    for name in here:
        found = list(differences(here[name], there.get(name), given.within))
        explained = EXPLAINED.get(name) if found else None
        worst = max(worst, 0 if explained else len(found))
        ranks = here[name]
        shown = sum(len(rank["trained"]) for rank in ranks)
        verdict = "explained" if explained else "differs" if found else "equal"
        print(
            f"{verdict:<9}  {name}: {len(ranks[0]['losses'])} losses, {shown} sentences, "
            f"time {times[0][name] / times[1][name]:.2f}"
        )
        for line in [explained] if explained else found[:12]:
            print("           " + line)
    return 1 if worst else 0


if __name__ == "__main__":
    sys.exit(main())
