"""A sharded run that is killed at any instant goes on from a complete checkpoint, as if nothing had happened."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
import torch

from accelerate.test_utils.world import fork_world, run_world
from accelerate.utils import ProjectConfiguration
from sharded_jobs import Job, accelerator, fresh, loss_of, plugin

EVERY, KILLS = 2, 4


class Steps:
    """Counts the steps of all lives."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def live(folder: Path | None, log: Path, until: int | None, asynchronous: bool) -> None:
    """Resumes where there is something, trains and saves; the first rank notes every step and its loss."""
    job = Job(fresh())
    config = None
    if folder is not None:
        config = ProjectConfiguration(str(folder), automatic_checkpoint_naming=True, total_limit=1)
    acc = accelerator(job, plugin(), project_config=config)
    tokens = torch.randint(0, 11, (24, 6), generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(tokens, batch_size=2, shuffle=True)
    torch.manual_seed(0)
    model, optimizer, loader = acc.prepare(job.model, job.optimizer(job.model.parameters()), loader)
    steps = Steps()
    acc.register_for_checkpointing(steps)
    if folder is not None:
        acc.resume()
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while until is None or steps.count < until:
        for batch in loader:
            loss = loss_of(model, batch)
            acc.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            steps.count += 1
            if acc.is_main_process:
                os.write(out, f"{steps.count} {float(loss.detach()).hex()}\n".encode())
            if folder is not None and steps.count % EVERY == 0:
                acc.save_state(asynchronous=asynchronous)
            if steps.count == until:
                break
    acc.end_training()


def read(log: Path) -> list[tuple[int, str]]:
    if not log.exists():
        return []
    return [(int(step), loss) for step, loss in (line.split() for line in log.read_text().splitlines())]


def live_and_die(kills: int, folder: Path, asynchronous: bool) -> list[list[tuple[int, str]]]:
    """What each life saw: killed some steps after its first, at any instant, both ranks one after the other."""
    chance, lives = random.Random(3 + asynchronous), []
    for life in range(kills):
        log = folder / f"log-{life}"
        with fork_world(lambda rank, n, log=log: live(folder, log, None, asynchronous), 2, timeout=60) as world:
            steps, deadline = chance.randint(1, 2 * EVERY + 2), time.monotonic() + 30
            while len(read(log)) < steps and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(chance.uniform(0.0, 0.2))
            for rank in chance.sample([0, 1], 2):
                world.kill(rank)
                time.sleep(chance.choice([0.0, 0.02]))
        lives.append(read(log))
    last = max(step for life in lives for step, _ in life) + EVERY + 1
    run_world(lambda rank, n: live(folder, folder / "log-last", last, asynchronous), 2, how="fork")
    return [*lives, read(folder / "log-last")]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["foreground", "background"])
def test_a_killed_run_goes_on(asynchronous: bool, tmp_path: Path) -> None:
    lives = live_and_die(KILLS, tmp_path, asynchronous)
    last = lives[-1][-1][0]
    run_world(lambda rank, n: live(None, tmp_path / "undisturbed", last, asynchronous), 2, how="fork")
    undisturbed = dict(read(tmp_path / "undisturbed"))
    saved = 0
    for number, seen in enumerate(lives):
        for step, loss in seen:
            assert undisturbed[step] == loss, f"life {number}, step {step}"
        if seen:
            begins = seen[0][0] - 1
            assert begins % EVERY == 0, f"life {number} begins at {begins}, where nothing was saved"
            assert begins >= saved, f"life {number} begins before {saved}, which was complete"
            saved = begins
    assert saved > 0, "some life began from a checkpoint"
    assert {step for life in lives for step, _ in life} == set(range(1, last + 1))
