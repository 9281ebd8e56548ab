"""Mixed precision without an Accelerator at hand."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from accelerate import Accelerator
from accelerate.config.enums import DistributedType
from accelerate.config.handlers import AutocastKwargs, GradScalerKwargs
from accelerate.errors import StateError
from accelerate.precision.calls import get_grad_scaler, get_mixed_precision_context_manager
from accelerate.state import AcceleratorState


@pytest.fixture(autouse=True)
def state(fresh_state: None) -> None:
    """No state, before and after."""


def test_scaler_of_this_device() -> None:
    scaler = get_grad_scaler(init_scale=8.0)
    assert type(scaler) is torch.amp.GradScaler
    assert (scaler.get_scale(), scaler.is_enabled()) == (8.0, True)
    assert type(get_grad_scaler(DistributedType.MULTI_CPU)) is torch.amp.GradScaler


def test_scaler_whose_ranks_agree() -> None:
    scaler = get_grad_scaler(DistributedType.FSDP, growth_interval=7)
    assert isinstance(scaler, ShardedGradScaler) and scaler.get_growth_interval() == 7


def test_context_of_the_precision_in_use() -> None:
    with pytest.raises(StateError):
        get_mixed_precision_context_manager(native_amp=True)
    assert isinstance(get_mixed_precision_context_manager(), nullcontext)
    AcceleratorState(mixed_precision="bf16", cpu=True, _from_accelerator=True)
    x = torch.ones(2, 2)
    with get_mixed_precision_context_manager(native_amp=True):
        assert (x @ x).dtype is torch.bfloat16
    with get_mixed_precision_context_manager(True, AutocastKwargs(enabled=False)):
        assert (x @ x).dtype is torch.float32


def test_gradients_that_were_never_scaled() -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs(init_scale=8.0)])
    layer = torch.nn.Linear(2, 1)
    model, optimizer = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    accelerator.unscale_gradients()  # nothing to do yet
    assert float(accelerator.clip_grad_norm_(model.parameters(), 1.0)) == 0.0
    model(torch.ones(3, 2)).mean().backward()
    for attempt in (accelerator.unscale_gradients, optimizer.step):
        with pytest.raises(StateError, match=r"Call accelerator\.backward\(loss\)"):
            attempt()
    optimizer.zero_grad()
    accelerator.backward(model(torch.ones(3, 2)).mean())
    accelerator.unscale_gradients()
    assert torch.allclose(layer.weight.grad, torch.ones(1, 2))
