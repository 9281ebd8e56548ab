"""Kills a training run again and again, and compares what it saw in all its lives with a run that was never killed.

    python -m benchmarks.kills                  200 kills, half of them with saves in the background
    python -m benchmarks.kills --kills 20 --seed 7

A run trains, saves every few steps with ``total_limit=1``, and is ended by SIGKILL at a random instant; the next life
goes on with ``accelerator.resume()``. Every life must start from a complete checkpoint, and every step of every life
must have seen the samples and the loss that the undisturbed run has at that step.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # lives are forks: what takes long to import is there before
from torch import nn

from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration

__all__ = ["Lives", "live_and_die", "undisturbed"]

EVERY = 3
ITEMS, BATCH = 20, 2

Seen = tuple[tuple[int, ...], float]


class Steps:
    """Counts the steps of all lives."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def train(
    folder: Path | None, note: Callable[[int, Seen], None], until: int | None, *, asynchronous: bool = False
) -> None:
    """One life: resumes, then trains up to step ``until``, saving every few steps; saves nothing without a folder."""
    torch.manual_seed(0)
    random.seed(0)
    config = ProjectConfiguration(str(folder), automatic_checkpoint_naming=True, total_limit=1)
    accelerator = Accelerator(cpu=True, project_config=config if folder is not None else None)
    net = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    loader = torch.utils.data.DataLoader(torch.arange(float(ITEMS)).view(-1, 1), batch_size=BATCH, shuffle=True)
    net, optimizer, scheduler, loader = accelerator.prepare(net, optimizer, scheduler, loader)
    steps = Steps()
    accelerator.register_for_checkpointing(steps)
    if folder is not None:
        accelerator.resume()
    while until is None or steps.count < until:
        for batch in loader:
            loss = (net(batch / ITEMS) - random.random()).pow(2).mean()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            steps.count += 1
            note(steps.count, (tuple(int(item) for item in batch.view(-1).tolist()), loss.item()))
            if folder is not None and steps.count % EVERY == 0:
                accelerator.save_state(asynchronous=asynchronous)
            if steps.count == until:
                break
    accelerator.end_training()


def _fork(work: Callable[[], Any]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def _ended(child: int, limit: float) -> int:
    """The exit code of a child, or -9 where it had to be ended after ``limit`` seconds."""
    deadline = time.monotonic() + limit
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        time.sleep(0.001)


def _life(folder: Path | None, log: Path, until: int | None, asynchronous: bool) -> int:
    def work() -> None:
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def note(step: int, seen: Seen) -> None:
            os.write(fd, f"{step} {','.join(map(str, seen[0]))} {seen[1].hex()}\n".encode())

        train(folder, note, until, asynchronous=asynchronous)

    return _fork(work)


def _read(log: Path) -> list[tuple[int, Seen]]:
    if not log.exists():
        return []
    lines = [line.split(" ") for line in log.read_text().splitlines()]
    return [(int(step), (tuple(map(int, ids.split(","))), float.fromhex(loss))) for step, ids, loss in lines]


@dataclass(slots=True)
class Lives:
    """What a run saw in each of its lives."""

    lives: list[list[tuple[int, Seen]]] = field(default_factory=list)
    killed: int = 0
    leftovers: list[str] = field(default_factory=list)

    @property
    def last(self) -> int:
        """The furthest step of all."""
        return max((step for life in self.lives for step, _ in life), default=0)

    def faults(self, undisturbed: dict[int, Seen]) -> list[str]:
        """Where it differs from the run that was never killed."""
        found = []
        reached = saved = 0
        for number, life in enumerate(self.lives):
            for step, seen in life:
                if undisturbed.get(step) != seen:
                    found.append(f"life {number}, step {step}: {seen}, undisturbed {undisturbed.get(step)}")
            if life and life[0][0] - 1 not in range(saved, reached + 1):
                found.append(f"life {number} begins at step {life[0][0]}; {saved} was complete, {reached} was reached")
            if life and (life[0][0] - 1) % EVERY:
                found.append(f"life {number} begins at step {life[0][0]}, where nothing was saved")
            if life:
                # What a life begins from was complete, and stays so until a later one is.
                saved, reached = life[0][0] - 1, max(reached, life[-1][0])
        missing = set(range(1, self.last + 1)) - {step for life in self.lives for step, _ in life}
        return found + [f"step {step} was never seen" for step in sorted(missing)]


def live_and_die(kills: int, *, seed: int, asynchronous: bool, folder: Path, longest: float = 0.4) -> Lives:
    """Trains in ``folder``, is killed ``kills`` times, and then lives to its end.

    Most lives are killed up to ``longest`` seconds after their first step, the others at any instant before it.
    """
    chance, told, to_first = random.Random(seed), Lives(), 0.1
    for life in range(kills):
        log = folder / f"log-{life}"
        started = time.monotonic()
        child = _life(folder, log, None, asynchronous)
        if chance.random() < 0.15:
            code = _ended(child, chance.uniform(0.0, to_first))
        else:
            while not _read(log) and time.monotonic() - started < 30.0:
                time.sleep(0.001)
            to_first = time.monotonic() - started
            code = _ended(child, chance.uniform(0.0, longest))
        if code != -signal.SIGKILL:
            raise RuntimeError(f"life {life} ended by itself with exit code {code}")
        told.killed += 1
        told.lives.append(_read(log))
    log = folder / "log-last"
    code = _ended(_life(folder, log, told.last + 2 * EVERY + 1, asynchronous), 60.0)
    if code:
        raise RuntimeError(f"the last life ended with exit code {code}")
    told.lives.append(_read(log))
    told.leftovers = sorted(path.name for path in (folder / "checkpoints").iterdir())
    return told


def undisturbed(steps: int, folder: Path) -> dict[int, Seen]:
    """What a run sees that is never killed and never saves."""
    log = folder / "undisturbed"
    if _ended(_life(None, log, steps, False), 60.0 + steps / 20):
        raise RuntimeError("the undisturbed run failed")
    return dict(_read(log))


def main() -> int:
    """Kills, compares, prints; the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    failed = 0
    for asynchronous in (False, True):
        folder = Path(tempfile.mkdtemp())
        started = time.monotonic()
        told = live_and_die(arguments.kills // 2, seed=arguments.seed, asynchronous=asynchronous, folder=folder)
        faults = told.faults(undisturbed(told.last, folder))
        failed += len(faults)
        how, taken = "background" if asynchronous else "foreground", time.monotonic() - started
        beginnings = len({life[0][0] for life in told.lives if life})
        print(
            f"{how}: killed {told.killed} times in {taken:.0f} s, {told.last} steps, {beginnings} different "
            f"beginnings, left behind {told.leftovers}, {len(faults)} faults"
        )
        for fault in faults[:10]:
            print(f"  {fault}")
        shutil.rmtree(folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
