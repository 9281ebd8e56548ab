"""float16: the scale, skipped steps, and everything that follows a skipped step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from accelerate import Accelerator
from accelerate.errors import PrepareError
from accelerate.test_utils.world import run_world
from accelerate.utils import GradScalerKwargs


def test_a_step_with_infinite_gradients_is_skipped_and_everybody_knows(fresh_state: None) -> None:
    accelerator = Accelerator(mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs(init_scale=1024.0)])
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    history = []
    for factor in (1.0, float("inf"), 1.0):
        before = model.weight.detach().clone()
        accelerator.backward((model(torch.ones(1, 2)) * factor).mean())
        optimizer.step()
        scheduler.step()
        history.append(
            (
                accelerator.optimizer_step_was_skipped,
                torch.equal(before, model.weight),
                optimizer.param_groups[0]["lr"],
                accelerator.scaler.get_scale(),
            )
        )
        optimizer.zero_grad()
    assert history == [(False, False, 0.05, 1024.0), (True, True, 0.05, 512.0), (False, False, 0.025, 512.0)]


def test_two_optimizers_of_one_step_see_one_scale(fresh_state: None) -> None:
    accelerator = Accelerator(mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs(init_scale=256.0)])
    first, second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    nn.init.ones_(first.weight)
    nn.init.ones_(second.weight)
    a, b = torch.optim.SGD(first.parameters(), lr=1.0), torch.optim.SGD(second.parameters(), lr=1.0)
    first, second, a, b = accelerator.prepare(first, second, a, b)
    x = torch.ones(1, 1)
    accelerator.backward((first(x) * float("inf")).mean() + (second(x) * 0.5).mean())
    a.step()
    b.step()
    assert (a.step_was_skipped, b.step_was_skipped) == (True, False)
    assert second.weight.item() == pytest.approx(0.5), "its gradient was divided by the scale it was made with"


def test_clipping_sees_true_gradients(fresh_state: None) -> None:
    accelerator = Accelerator(mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs(init_scale=4096.0)])
    model = nn.Linear(4, 1, bias=False)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    accelerator.backward(model(torch.ones(1, 4)).sum())
    norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
    assert float(norm) == pytest.approx(2.0)
    assert model.weight.grad.norm().item() == pytest.approx(1.0, rel=1e-4)
    optimizer.step()
    assert not accelerator.optimizer_step_was_skipped


def test_ranks_skip_together() -> None:
    def rank_main(rank: int, n: int) -> tuple[bool, float]:
        accelerator = Accelerator(mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs(init_scale=8.0)])
        model = nn.Linear(1, 1)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        accelerator.backward((model(torch.ones(1, 1)) * (float("inf") if rank == 1 else 1.0)).mean())
        optimizer.step()
        return accelerator.optimizer_step_was_skipped, accelerator.scaler.get_scale()

    assert run_world(rank_main, 2, how="fork") == [(True, 4.0), (True, 4.0)]


def test_float16_weights_are_refused_with_the_way_out(fresh_state: None) -> None:
    accelerator = Accelerator(mixed_precision="fp16")
    with pytest.raises(PrepareError, match=r"'weight'.*float32"):
        accelerator.prepare(nn.Linear(2, 1).half())


def test_a_closure_is_refused(fresh_state: None) -> None:
    accelerator = Accelerator(mixed_precision="fp16")
    model = nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(TypeError, match="closure"):
        optimizer.step(lambda: None)
