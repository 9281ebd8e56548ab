"""Questions about a model as a tree."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from accelerate.modules import (
    get_model_tp_size,
    get_module_children_bottom_up,
    has_4bit_bnb_layers,
    has_transformer_engine_layers,
    is_peft_model,
    model_has_dtensor,
)
from accelerate.test_utils.world import run_world


def test_bottom_up_is_inside_before_outside() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(1, 1), nn.ReLU()), nn.Linear(1, 1))
    named = get_module_children_bottom_up(model, return_fqns=True)
    assert [name for name, _ in named] == ["0.0", "0.1", "0", "1", ""]
    assert get_module_children_bottom_up(model) == [module for _, module in named]
    assert named[-1][1] is model


@pytest.mark.parametrize(
    ("question", "library", "kind"),
    [
        (has_4bit_bnb_layers, "bitsandbytes.nn", "Linear4bit"),
        (has_transformer_engine_layers, "transformer_engine.pytorch", "LayerNorm"),
    ],
)
def test_layers_of_a_library(question: Any, library: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    monkeypatch.delitem(sys.modules, library, raising=False)
    assert question(model) is False
    layer = type(kind, (nn.Linear,), {})
    module = ModuleType(library)
    setattr(module, kind, layer)
    monkeypatch.setitem(sys.modules, library, module)
    assert question(model) is False
    assert question(nn.Sequential(model, layer(1, 1))) is True


def test_peft_models_under_wrappers() -> None:
    from peft import LoraConfig, get_peft_model

    inner = nn.Sequential(nn.Linear(2, 2))
    model = get_peft_model(inner, LoraConfig(target_modules=["0"]))
    wrapper = nn.Module()
    wrapper.module = model
    assert is_peft_model(model) and is_peft_model(wrapper) and is_peft_model(torch.compile(wrapper, backend="eager"))
    assert not is_peft_model(inner) and not is_peft_model(None)


def test_tensor_parallel_models_are_recognised() -> None:
    def look(rank: int, n: int) -> tuple[Any, ...]:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        plain = nn.Linear(4, 4)
        told = nn.Linear(4, 4)
        told.tp_size = 8  # type: ignore[assignment]
        answers = [model_has_dtensor(plain), get_model_tp_size(plain), get_model_tp_size(told)]
        for name in ("tp", "fsdp"):
            mesh = init_device_mesh("cpu", (n,), mesh_dim_names=(name,))
            split = nn.Linear(4, 4, bias=False)
            split.weight = nn.Parameter(distribute_tensor(split.weight.detach(), mesh, [Shard(0)]))
            answers += [model_has_dtensor(split), get_model_tp_size(split)]
        return tuple(answers)

    assert run_world(look, 2) == [(False, None, 8, True, 2, True, None)] * 2
