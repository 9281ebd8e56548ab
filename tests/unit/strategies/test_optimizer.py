"""The optimizer in front of an optimizer."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

from accelerate import Accelerator
from accelerate.errors import StateError
from accelerate.strategies.optimizer import AcceleratedOptimizer, move_to_device
from accelerate.strategies.scheduler import AcceleratedScheduler


@pytest.fixture
def accelerator(fresh_state: None) -> Accelerator:
    return Accelerator(gradient_accumulation_steps=2)


def prepared(accelerator: Accelerator) -> tuple[nn.Module, AcceleratedOptimizer]:
    model = nn.Linear(1, 1)
    return accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9))


def test_it_waits_for_complete_gradients(accelerator: Accelerator) -> None:
    model, optimizer = prepared(accelerator)
    accelerator.gradient_state._set_sync_gradients(False)
    model(torch.ones(1, 1)).sum().backward()
    before = model.weight.item()
    optimizer.step()
    optimizer.zero_grad()
    assert model.weight.item() == before
    assert model.weight.grad is not None
    accelerator.gradient_state._set_sync_gradients(True)
    optimizer.step()
    assert model.weight.item() == before - 0.5
    optimizer.zero_grad()
    assert model.weight.grad is None


def test_zero_grad_may_keep_the_tensors(accelerator: Accelerator) -> None:
    model, optimizer = prepared(accelerator)
    model(torch.ones(1, 1)).sum().backward()
    optimizer.zero_grad(set_to_none=False)
    assert model.weight.grad.item() == 0.0


def test_it_is_an_optimizer_to_everybody_else(accelerator: Accelerator) -> None:
    model, optimizer = prepared(accelerator)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.param_groups is optimizer.optimizer.param_groups
    assert optimizer.defaults["momentum"] == 0.9
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    schedule.step()
    assert optimizer.optimizer.param_groups[0]["lr"] == 0.25
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    assert len(optimizer.param_groups) == 2


def test_hooks_go_to_the_one_that_steps(accelerator: Accelerator) -> None:
    model, optimizer = prepared(accelerator)
    calls = []
    optimizer.register_step_pre_hook(lambda *a: calls.append("before"))
    optimizer.register_step_post_hook(lambda *a: calls.append("after"))
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    assert calls == ["before", "after"]


def test_its_state_is_the_plain_one(accelerator: Accelerator) -> None:
    model, optimizer = prepared(accelerator)
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    plain = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1, momentum=0.9)
    plain.load_state_dict(optimizer.state_dict())
    assert plain.param_groups[0]["lr"] == 0.5
    back = pickle.loads(pickle.dumps(optimizer))
    assert back.state_dict().keys() == optimizer.state_dict().keys()


def test_a_closure_runs(accelerator: Accelerator) -> None:
    model = nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.LBFGS(model.parameters(), max_iter=2))
    calls = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 1)).square().sum()
        loss.backward()
        calls.append(loss.item())
        return loss

    optimizer.step(closure)
    assert len(calls) >= 1
    assert model(torch.ones(1, 1)).square().item() < max(calls[0], 1e-9)


def test_schedule_free_optimizers_change_mode(accelerator: Accelerator) -> None:
    class Modes(torch.optim.SGD):
        mode = "?"

        def train(self) -> None:
            self.mode = "train"

        def eval(self) -> None:
            self.mode = "eval"

    optimizer = accelerator.prepare(Modes(nn.Linear(1, 1).parameters(), lr=0.1))
    optimizer.train()
    assert optimizer.optimizer.mode == "train"
    optimizer.eval()
    assert optimizer.optimizer.mode == "eval"
    assert accelerator.prepare(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)).eval() is None


def test_move_to_device_keeps_types() -> None:
    state = {"a": [torch.ones(1), 3], "b": (torch.ones(1), "x")}
    moved = move_to_device(state, torch.device("meta"))
    assert moved["a"][0].is_meta
    assert moved["a"][1] == 3
    assert isinstance(moved["b"], tuple)


class TestScheduler:
    def make(
        self, accelerator: Accelerator, **kwargs: bool
    ) -> tuple[nn.Module, AcceleratedOptimizer, AcceleratedScheduler]:
        model, optimizer = prepared(accelerator)
        inner = torch.optim.lr_scheduler.LambdaLR(optimizer.optimizer, lambda step: 1 / (step + 1))
        return model, optimizer, AcceleratedScheduler(inner, optimizer, **kwargs)

    def test_it_moves_when_a_window_closes(self, accelerator: Accelerator) -> None:
        model, optimizer, scheduler = self.make(accelerator)
        seen = []
        for _ in range(4):
            with accelerator.accumulate(model):
                accelerator.backward(model(torch.ones(1, 1)).sum())
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            seen.append(scheduler.get_last_lr()[0])
        assert seen == pytest.approx([0.5, 0.25, 0.25, 0.5 / 3])

    def test_it_can_be_left_to_itself(self, accelerator: Accelerator) -> None:
        _, optimizer, scheduler = self.make(accelerator, step_with_optimizer=False)
        optimizer.step()
        accelerator.gradient_state._set_sync_gradients(False)
        scheduler.step()
        assert scheduler.get_last_lr() == [0.25]

    def test_it_ends_quietly(self, accelerator: Accelerator) -> None:
        model, optimizer = prepared(accelerator)
        inner = torch.optim.lr_scheduler.OneCycleLR(optimizer.optimizer, max_lr=1.0, total_steps=3)
        scheduler = accelerator.prepare(inner)
        for _ in range(5):
            optimizer.step()
            scheduler.step()
        assert inner.last_epoch == 2

    def test_its_state_is_the_plain_one(self, accelerator: Accelerator) -> None:
        _, _, scheduler = self.make(accelerator)
        assert scheduler.state_dict() == scheduler.scheduler.state_dict()
        assert scheduler.optimizers[0].gradients_complete


def test_a_closure_gives_the_loss_it_had_first(accelerator: Accelerator) -> None:
    plain, model = nn.Linear(2, 1), nn.Linear(2, 1)
    model.load_state_dict(plain.state_dict())
    inputs, losses = torch.eye(2), []
    for net in (plain, model):
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
        if net is model:
            net, optimizer = accelerator.prepare(net, optimizer)

        def closure(net: nn.Module = net, optimizer: torch.optim.Optimizer = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (net(inputs) - 1).pow(2).sum()
            loss.backward()
            return loss

        losses.append([optimizer.step(closure).item() for _ in range(3)])
    assert losses[0] == losses[1]
    assert losses[0][0] > losses[0][1]


def test_a_closure_cannot_be_accumulated(accelerator: Accelerator) -> None:
    model, optimizer = prepared(accelerator)
    with accelerator.accumulate(model), pytest.raises(StateError, match="accumulation window"):
        optimizer.step(lambda: 1.0)
