"""DistributedDataParallel through the façade: its settings, its hooks, its errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.errors import PrepareError
from accelerate.test_utils.world import run_world
from accelerate.utils import DDPCommunicationHookType


class Branches(nn.Module):
    """Uses one of its two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(2, 1)
        self.idle = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def train(accelerator: Accelerator, model: Any, steps: int = 2) -> Any:
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(steps):
        accelerator.backward(model(torch.full((1, 2), float(step + accelerator.process_index))).sum())
        optimizer.step()
        optimizer.zero_grad()
    return model


def test_unused_parameters_are_named() -> None:
    def rank_main(rank: int, n: int) -> str:
        with pytest.raises(PrepareError) as caught:
            train(Accelerator(), Branches())
        return str(caught.value)

    for message in run_world(rank_main, 2, how="fork"):
        assert "idle.weight" in message
        assert "idle.bias" in message
        assert "used" not in message.split(",")[0]
        assert "find_unused_parameters=True" in message


def test_find_unused_parameters_is_passed_on() -> None:
    def rank_main(rank: int, n: int) -> bool:
        handler = DistributedDataParallelKwargs(find_unused_parameters=True)
        return bool(train(Accelerator(kwargs_handlers=[handler]), Branches()).find_unused_parameters)

    assert run_world(rank_main, 2, how="fork") == [True, True]


def test_settings_are_read_when_the_model_is_prepared() -> None:
    def rank_main(rank: int, n: int) -> tuple[float, bool, bool]:
        accelerator = Accelerator()
        accelerator.ddp_handler = DistributedDataParallelKwargs(
            bucket_cap_mb=3, broadcast_buffers=False, gradient_as_bucket_view=True
        )
        model = accelerator.prepare(nn.Linear(2, 1))
        return model.bucket_bytes_cap / 2**20, bool(model.broadcast_buffers), model.gradient_as_bucket_view

    assert run_world(rank_main, 2, how="fork") == [(3.0, False, True)] * 2


@pytest.mark.parametrize(
    ("hook", "wrapper", "tolerance"),
    [
        ("no", "no", 1e-6),
        ("fp16", "no", 1e-3),
        ("bf16", "no", 1e-2),
        ("power_sgd", "no", 1e-4),
        ("power_sgd", "fp16", 1e-2),
        ("power_sgd", "bf16", 5e-2),
        ("batched_power_sgd", "no", 10.0),
    ],
)
def test_compressed_gradients_stay_close(hook: str, wrapper: str, tolerance: float) -> None:
    def rank_main(rank: int, n: int) -> list[torch.Tensor]:
        handler = DistributedDataParallelKwargs(
            comm_hook=DDPCommunicationHookType(hook),
            comm_wrapper=DDPCommunicationHookType(wrapper),
            comm_state_option={"start_powerSGD_iter": 2} if "power" in hook else {},
        )
        accelerator = Accelerator(kwargs_handlers=[handler])
        torch.manual_seed(0)
        model = accelerator.prepare(nn.Linear(2, 3))
        for step in range(4):
            model.zero_grad()
            accelerator.backward(model(torch.tensor([[1.0, 2.0]]) * (rank + 1) * (step + 1)).sum())
        return [p.grad.clone() for p in model.parameters()]

    expected = [torch.tensor([[6.0, 12.0]] * 3), torch.ones(3)]
    first, second = run_world(rank_main, 2, how="fork")
    for a, b, wanted in zip(first, second, expected, strict=True):
        assert torch.equal(a, b), "ranks agree to the bit"
        assert torch.allclose(a, wanted, atol=tolerance, rtol=tolerance)


def test_a_model_with_nothing_to_train_is_not_wrapped() -> None:
    def rank_main(rank: int, n: int) -> bool:
        model = nn.Linear(2, 1).requires_grad_(False)
        return Accelerator().prepare(model) is model

    assert run_world(rank_main, 2, how="fork") == [True, True]


def test_evaluation_mode_wraps_nothing_and_runs_in_the_precision() -> None:
    def rank_main(rank: int, n: int) -> Any:
        accelerator = Accelerator(mixed_precision="bf16")
        model = accelerator.prepare_model(nn.Linear(2, 2), evaluation_mode=True)
        inside: list[torch.dtype] = []
        nn.Module.register_forward_hook(model, lambda m, i, o: inside.append(o.dtype))
        out = model(torch.ones(1, 2))
        return type(model).__name__, out.dtype, len(accelerator._models)

    assert run_world(rank_main, 2, how="fork") == [("Linear", torch.float32, 1)] * 2


def test_gradients_stay_local_without_sync_and_are_averaged_with() -> None:
    def rank_main(rank: int, n: int) -> Any:
        accelerator = Accelerator()
        model = accelerator.prepare(nn.Linear(1, 1, bias=False))
        x = torch.ones(1, 1) * (rank + 1)
        with accelerator.no_sync(model):
            accelerator.backward(model(x).sum())
        local = model.module.weight.grad.item()
        model.zero_grad()
        with accelerator.no_sync(model):
            loss = model(x).sum()
        with accelerator.trigger_sync_in_backward(model):
            accelerator.backward(loss)
        return local, model.module.weight.grad.item()

    assert run_world(rank_main, 2, how="fork") == [(1.0, 1.5), (2.0, 1.5)]


def test_uneven_inputs_are_joined() -> None:
    def rank_main(rank: int, n: int) -> float:
        accelerator = Accelerator()
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
        with accelerator.join_uneven_inputs([model]):
            for _ in range(2 + rank):
                accelerator.backward(model(torch.ones(1, 1)).sum())
                optimizer.step()
                optimizer.zero_grad()
        return float(model.module.weight.item())

    first, second = run_world(rank_main, 2, how="fork")
    assert first == second == pytest.approx(-2.5), "the third step halves the only gradient there is"
