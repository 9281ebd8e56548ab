"""Ranks that train apart and meet every few steps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from accelerate.test_utils.world import run_world


def test_parameters_part_and_meet() -> None:
    def rank_main(rank: int, n: int) -> list[float]:
        accelerator = Accelerator()
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
        seen = []
        with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=2) as local:
            for _ in range(3):
                accelerator.backward(model(torch.full((1, 1), float(rank + 1))).sum())
                optimizer.step()
                optimizer.zero_grad()
                local.step()
                seen.append(next(model.parameters()).item())
        return [*seen, next(model.parameters()).item()]

    first, second = run_world(rank_main, 2, how="fork")
    assert first == pytest.approx([-1.0, -3.0, -4.0, -4.5]), "alone, met, alone, met on leaving"
    assert second == pytest.approx([-2.0, -3.0, -5.0, -4.5])


def test_one_process_has_nobody_to_meet(fresh_state: None) -> None:
    accelerator = Accelerator()
    model = accelerator.prepare(nn.Linear(1, 1))
    before = [p.clone() for p in model.parameters()]
    with LocalSGD(accelerator, model, 1) as local:
        local.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_no_steps_is_refused(fresh_state: None) -> None:
    accelerator = Accelerator()
    with pytest.raises(ValueError, match="local_sgd_steps=0"):
        LocalSGD(accelerator, accelerator.prepare(nn.Linear(1, 1)), 0)
