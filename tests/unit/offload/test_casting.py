"""Layers stored small and computed large."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from accelerate.offload.casting import LayerwiseCastingHook, attach_layerwise_casting_hooks
from accelerate.offload.hooks import remove_hook_from_submodules
from unit.offload.models import net


def dtypes(model: nn.Module) -> dict[str, torch.dtype]:
    return {name: p.dtype for name, p in model.named_parameters() if name.endswith("weight")}


@pytest.mark.parametrize("storage", [torch.float8_e4m3fn, torch.bfloat16])
def test_values_are_those_of_the_rounded_layers(storage: torch.dtype) -> None:
    model, x = net(), torch.rand(2, 3)
    rounded = net()
    for layer in (rounded.first, rounded.last):
        layer.to(storage).to(torch.float32)
    attach_layerwise_casting_hooks(model, storage, torch.float32)
    assert dtypes(model) == {"first.weight": storage, "norm.weight": torch.float32, "last.weight": storage}
    with torch.no_grad():
        assert torch.equal(model(x), rounded(x)) and not torch.equal(model(x), net()(x))
    assert dtypes(model)["first.weight"] is storage


def test_left_alone_by_name_and_by_class() -> None:
    model = nn.Sequential(net(), nn.Sequential(nn.Linear(2, 2), nn.Conv1d(1, 1, 1)))
    half = torch.float16
    attach_layerwise_casting_hooks(model, half, torch.float32, skip_modules_pattern="first$")
    assert {name for name, dtype in dtypes(model).items() if dtype is half} == {
        "0.last.weight",
        "1.0.weight",
        "1.1.weight",
    }
    model = nn.Sequential(net(), nn.Sequential(nn.Linear(2, 2), nn.Conv1d(1, 1, 1)))
    attach_layerwise_casting_hooks(
        model, half, torch.float32, skip_modules_pattern=("^1$", "last"), skip_modules_classes=(nn.Conv1d,)
    )
    assert {name for name, dtype in dtypes(model).items() if dtype is half} == {"0.first.weight"}
    model = nn.Sequential(net(), nn.Linear(2, 2))
    attach_layerwise_casting_hooks(model, half, torch.float32, skip_modules_classes=(type(model[0]),))
    assert {name for name, dtype in dtypes(model).items() if dtype is half} == {"1.weight"}


def test_hook_keeps_its_arguments_and_comes_off() -> None:
    model = net()
    attach_layerwise_casting_hooks(model, torch.float16, torch.float32, non_blocking=True)
    hook = model.first._hf_hook
    assert isinstance(hook, LayerwiseCastingHook)
    assert (hook.storage_dtype, hook.compute_dtype, hook.non_blocking) == (torch.float16, torch.float32, True)
    remove_hook_from_submodules(model)
    assert not hasattr(model.first, "_hf_hook")
