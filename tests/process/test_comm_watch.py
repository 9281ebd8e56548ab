"""Ranks that wait in vain: everybody hears of it, with names and lines."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accelerate import Accelerator, runtime
from accelerate.comm import operations
from accelerate.comm.watch import watched
from accelerate.errors import RankLeftError
from accelerate.state import PartialState
from accelerate.test_utils.world import Outcome, fork_world

QUICK = {"ACCELERATE_HANG_TIMEOUT": "4"}


def endings(fn: Callable[[int, int], Any], n: int = 2, **env: str) -> list[Outcome]:
    return fork_world(fn, n, timeout=50, env={**QUICK, **env}, linger=False).outcomes()


def message(outcome: Outcome) -> str:
    assert outcome.ended == "raised", outcome.describe()
    assert isinstance(outcome.error, RankLeftError), outcome.describe()
    return str(outcome.error)


def place(comment: str) -> str:
    """The file and line of this module that ends with ``comment``."""
    lines = Path(__file__).read_text().splitlines()
    return f"{__file__}:{next(i for i, line in enumerate(lines, 1) if line.endswith(f'# {comment}'))}"


def test_a_rank_with_fewer_batches_ends_both_with_names_and_lines() -> None:
    def train(rank: int, n: int) -> None:
        PartialState()
        model = DistributedDataParallel(nn.Linear(2, 1))
        operations.barrier()
        for _ in range(3 - rank):
            loss = model(torch.ones(1, 2)).sum()
            with watched("backward()"):
                loss.backward()  # the line of rank 0
        operations.barrier()  # the line of rank 1

    started = time.monotonic()
    first, second = endings(train)
    assert time.monotonic() - started < 20
    assert "rank 0: is in another call; in backward() at " in message(second)
    assert f"{place('the line of rank 0')} in train" in message(second)
    assert f"wait_for_everyone() at {place('the line of rank 1')} in train" in message(second)
    assert "lost its connection to rank 1 in backward()" in message(first)
    assert f"{place('the line of rank 0')} in train" in message(first)


def test_an_accelerators_loop_that_ends_early_on_one_rank() -> None:
    def train(rank: int, n: int) -> None:
        accelerator = Accelerator(cpu=True)
        model = nn.Linear(2, 1)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(4):
            if rank == 1 and step == 2:
                break
            accelerator.backward(model(torch.ones(1, 2)).sum())  # the line in the loop
            optimizer.step()
            optimizer.zero_grad()
        accelerator.gather_for_metrics(torch.ones(1))

    first, second = endings(train)
    assert f"backward() at {place('the line in the loop')} in train" in message(first)
    assert f"rank 0: is in another call; in backward() at {place('the line in the loop')} in train" in message(second)
    assert "Rank 1 has waited" in message(second) and "in gather_for_metrics()" in message(second)


def test_a_rank_that_died_is_named() -> None:
    def die(rank: int, n: int) -> None:
        PartialState()
        operations.barrier()
        if rank == 1:
            os._exit(3)
        operations.gather(torch.ones(1))

    survivor, dead = endings(die)
    assert dead.ended == "died"
    assert "Rank 0 lost its connection to rank 1 in gather()" in message(survivor)
    assert "rank 1: does not answer any more" in message(survivor)


def test_a_rank_that_says_goodbye_is_named_with_its_reason() -> None:
    def finish(rank: int, n: int) -> None:
        PartialState()
        operations.barrier()
        if rank == 1:
            runtime.current().collectives.watch.close()  # type: ignore[attr-defined]
            time.sleep(12)
            return
        operations.gather(torch.ones(1))

    waiting, _ = endings(finish)
    assert "waits in gather()" in message(waiting)
    assert "for rank 1, which left" in message(waiting)
    assert "rank 1: finished its program" in message(waiting)


def test_a_rank_that_leaves_a_loop_is_named_within_seconds() -> None:
    def leave(rank: int, n: int) -> float:
        PartialState()
        operations.barrier()
        watch = runtime.current().collectives.watch  # type: ignore[attr-defined]
        if rank == 1:
            watch.leave("the loop over loader 0")
            time.sleep(10)
            return 0.0
        watch.topic = "the loop over loader 0"
        started = time.monotonic()
        with pytest.raises(RankLeftError, match="rank 1: left the loop over loader 0 at .*test_comm_watch.py"):
            operations.gather(torch.ones(1))
        return time.monotonic() - started

    waiting, left = endings(leave, ACCELERATE_HANG_TIMEOUT="30")
    assert left.ended == "returned"
    assert waiting.ended == "returned", waiting.describe()
    assert waiting.value < 8


def test_a_slow_rank_is_waited_for() -> None:
    def slow(rank: int, n: int) -> torch.Tensor:
        PartialState()
        operations.barrier()
        if rank == 1:
            time.sleep(9)  # more than twice the limit
        return operations.gather(torch.tensor([rank]))

    assert [outcome.value.tolist() for outcome in endings(slow)] == [[0, 1], [0, 1]]


def test_all_ranks_in_different_calls() -> None:
    """Three ranks: two wait for each other in one call, the third in a call of torch's own."""

    def cross(rank: int, n: int) -> None:
        PartialState()
        operations.barrier()
        if rank == 2:
            torch.distributed.all_reduce(torch.ones(1))
        else:
            operations.gather(torch.ones(1))

    outcomes = endings(cross, 3)
    told = [message(outcome) for outcome in outcomes[:2]]
    assert any("for rank 2; all ranks wait" in text for text in told)  # the other may see this one leave first
    assert any("rank 2: is in another call; at " in text for text in told)
    assert outcomes[2].ended == "raised"
