"""How far a schedule moves when there are several processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from accelerate import Accelerator
from accelerate.test_utils.world import run_world


@pytest.mark.parametrize(
    ("kwargs", "moves"),
    [
        ({}, 2),
        ({"split_batches": True}, 1),
        ({"step_scheduler_once": True}, 1),
        ({"step_scheduler_with_optimizer": False}, 1),
    ],
    ids=["per-process", "split-batches", "once", "by-itself"],
)
def test_steps_a_call(kwargs: dict[str, Any], moves: int) -> None:
    def rank_main(rank: int, n: int) -> int:
        accelerator = Accelerator(**kwargs)
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
        accelerator.backward(model(torch.ones(1, 1)).sum())
        optimizer.step()
        scheduler.step()
        return int(scheduler.scheduler.last_epoch)

    assert run_world(rank_main, 2, how="fork") == [moves, moves]


def test_a_metric_is_observed_once() -> None:
    def rank_main(rank: int, n: int) -> list[float]:
        accelerator = Accelerator()
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2, factor=0.5)
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
        rates = []
        for _ in range(5):
            scheduler.step(1.0)
            rates.append(optimizer.param_groups[0]["lr"])
        return rates

    assert run_world(rank_main, 2, how="fork") == [[1.0, 1.0, 1.0, 0.5, 0.5]] * 2
