"""Models that take turns on a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from accelerate.offload.cpu import CpuOffload, UserCpuOffloadHook, cpu_offload_with_hook
from accelerate.runtime import isolated
from unit.offload.models import net


def test_arguments_are_attributes_and_the_device_has_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    with isolated():
        hook = CpuOffload()
    assert hook.execution_device == torch.device("cpu") and hook.prev_module_hook is None
    assert CpuOffload("cuda:1").execution_device == "cuda:1"


def test_result_is_that_of_the_model() -> None:
    model, x = net(), torch.rand(2, 3)
    expected = model(x)
    same, hook = cpu_offload_with_hook(model, "cpu")
    assert same is model and isinstance(hook, UserCpuOffloadHook) and isinstance(hook.hook, CpuOffload)
    assert torch.equal(model(x), expected)
    hook.offload()
    hook.remove()
    assert not hasattr(model, "_hf_hook") and torch.equal(model(x), expected)


class Layer(nn.Linear):
    """Moves also where its tensors are fake, which nn.Module does not."""

    def to(self, device: Any) -> Layer:  # type: ignore[override]
        for name, parameter in self.named_parameters():
            self._parameters[name] = nn.Parameter(parameter.detach().to(device))
        return self


def test_models_of_a_chain_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    def device(model: nn.Module) -> str:
        return str(next(model.parameters()).device)

    freed: list[str] = []
    from accelerate.devices import get

    monkeypatch.setattr(get("cuda").memory, "empty_cache", lambda: freed.append("cuda"))
    with FakeTensorMode(), torch.no_grad():
        first, one = cpu_offload_with_hook(Layer(2, 2), "cuda:0")
        second, two = cpu_offload_with_hook(Layer(2, 2), "cuda:0", one)
        x = torch.ones(1, 2)
        x = first(x)
        assert (device(first), device(second), str(x.device)) == ("cuda:0", "cpu", "cuda:0")
        x = second(x)
        assert (device(first), device(second)) == ("cpu", "cuda:0")
        second(x)
        assert device(second) == "cuda:0"
        two.offload()
        assert (device(first), device(second)) == ("cpu", "cpu")
    assert freed == ["cuda", "cuda"]


def test_other_hooks_stay() -> None:
    from accelerate.offload.hooks import ModelHook, SequentialHook, add_hook_to_module

    model: Any = net()
    add_hook_to_module(model, ModelHook())
    cpu_offload_with_hook(model, "cpu")
    assert isinstance(model._hf_hook, SequentialHook)
