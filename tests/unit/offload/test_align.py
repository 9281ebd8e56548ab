"""Offloaded modules compute what they computed before, and hold nothing between calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from accelerate.offload.align import (
    AlignDevicesHook,
    attach_align_device_hook,
    attach_align_device_hook_on_blocks,
    attach_execution_device_hook,
)
from accelerate.offload.disk import OffloadedWeightsLoader, offload_state_dict
from accelerate.offload.hooks import (
    ModelHook,
    add_hook_to_module,
    remove_hook_from_module,
    remove_hook_from_submodules,
)
from unit.offload.models import language, net

CPU = torch.device("cpu")
X = torch.linspace(-1, 1, 6).reshape(2, 3)


def places(module: nn.Module) -> set[str]:
    return {tensor.device.type for tensor in [*module.parameters(), *module.buffers()]}


def hooks(model: nn.Module) -> dict[str, Any]:
    return {name: module._hf_hook for name, module in model.named_modules() if hasattr(module, "_hf_hook")}


def test_offloaded_layer_is_there_for_the_call_only() -> None:
    layer = net().first
    expected, seen = layer(X), list[str]()
    add_hook_to_module(layer, AlignDevicesHook(execution_device="cpu", offload=True))

    class Look(ModelHook):
        def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            seen.append(next(module.parameters()).device.type)
            return args, kwargs

    add_hook_to_module(layer, Look(), append=True)
    assert places(layer) == {"meta"}
    assert torch.equal(layer(X), expected)
    assert seen == ["cpu"] and places(layer) == {"meta"}


def test_placeholders_are_the_same_objects_after_each_call() -> None:
    layer = net().first
    add_hook_to_module(layer, AlignDevicesHook(execution_device="cpu", offload=True))
    before = layer.weight
    layer(X)
    assert layer.weight is before


def test_buffers_stay_unless_asked_for() -> None:
    norm = net().norm
    x = torch.rand(2, 4)
    expected = norm(x)
    add_hook_to_module(norm, AlignDevicesHook(execution_device="cpu", offload=True))
    assert norm.running_mean.device.type == "cpu" and norm.weight.device.type == "meta"
    assert torch.equal(norm(x), expected)
    remove_hook_from_module(norm)
    add_hook_to_module(norm, AlignDevicesHook(execution_device="cpu", offload=True, offload_buffers=True))
    assert places(norm) == {"meta"}
    assert torch.equal(norm(x), expected)
    remove_hook_from_module(norm)
    assert places(norm) == {"cpu"} and torch.equal(norm(x), expected)


def test_unsaved_buffers_stay_on_the_device() -> None:
    model = language()
    weights = {"shift": model.shift.detach()}
    hook = AlignDevicesHook("cpu", offload=True, weights_map=weights, offload_buffers=True)
    add_hook_to_module(model, hook)
    assert model.scale.device.type == "cpu" and model.shift.device.type == "meta"
    assert hook.original_devices == {"shift": CPU, "scale": CPU}


def test_weights_come_from_the_map_at_every_call() -> None:
    layer = net().first
    weights = {"weight": torch.zeros(4, 3), "bias": torch.ones(4)}
    add_hook_to_module(layer, AlignDevicesHook("cpu", offload=True, weights_map=weights))
    assert torch.equal(layer(X), torch.ones(2, 4))
    weights["bias"] = torch.full((4,), 2.0)
    assert torch.equal(layer(X), torch.full((2, 4), 2.0))


def test_calls_by_hand() -> None:
    layer = net().first
    value = layer.weight.detach().clone()
    hook = AlignDevicesHook("cpu", offload=True)
    add_hook_to_module(layer, hook)
    hook.pre_forward(layer)
    assert torch.equal(layer.weight, value)
    hook.post_forward(layer, ())
    assert places(layer) == {"meta"}


def test_attributes_are_the_arguments() -> None:
    given: dict[str, Any] = {
        "execution_device": "cpu",
        "offload": True,
        "io_same_device": True,
        "weights_map": {},
        "offload_buffers": True,
        "place_submodules": True,
        "skip_keys": ["cache"],
        "tied_params_map": {},
    }
    hook = AlignDevicesHook(**given)
    assert {name: getattr(hook, name) for name in given} == given
    assert "execution_device=cpu" in repr(hook)
    assert not hasattr(hook, "original_devices")  # only what offloads has some


def test_inputs_and_outputs_move() -> None:
    class Where(nn.Module):
        def forward(self, x: torch.Tensor, cache: Any = None, other: Any = None) -> dict[str, Any]:
            return {"x": x.device.type, "cache": cache.device.type, "other": other[0].device.type, "out": x}

    module = Where()
    add_hook_to_module(module, AlignDevicesHook("meta", io_same_device=False, skip_keys="cache"))
    found = module(torch.ones(1), cache=torch.ones(1), other=[torch.ones(1)])
    assert (found["x"], found["cache"], found["other"]) == ("meta", "cpu", "meta")
    assert found["out"].device.type == "meta"


def test_outputs_go_back_to_where_the_inputs_came_from() -> None:
    module = nn.Identity()
    add_hook_to_module(module, AlignDevicesHook(execution_device="cpu", io_same_device=True))
    hook: Any = module._hf_hook
    module(torch.ones(1))
    assert hook.input_device == CPU
    hook.execution_device = "meta"
    with pytest.raises(NotImplementedError):  # torch refuses to fill a real tensor from an empty one
        module(torch.ones(1))


def test_whole_block_can_be_brought_in_at_once() -> None:
    model = net()
    expected = model(X)
    add_hook_to_module(model, AlignDevicesHook("cpu", offload=True, place_submodules=True))
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert torch.equal(model(X), expected)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    remove_hook_from_module(model)
    assert places(model) == {"cpu"} and torch.equal(model(X), expected)


def test_attach_execution_device_reaches_what_holds_tensors() -> None:
    model = nn.Sequential(net(), nn.ReLU())
    add_hook_to_module(model[0].norm, ModelHook())
    attach_execution_device_hook(model, "cpu", skip_keys="k")
    assert set(hooks(model)) == {"", "0", "0.first", "0.norm", "0.last"}
    assert type(hooks(model)["0.norm"]) is ModelHook and hooks(model)["0"].skip_keys == "k"
    remove_hook_from_submodules(model)
    attach_execution_device_hook(model, "cpu", preload_module_classes=["Net"])
    assert set(hooks(model)) == {"", "0"}


def test_attach_align_offloads_every_part_with_its_own_names() -> None:
    model = language()
    ids = torch.arange(6).reshape(2, 3)
    expected = model(ids)["logits"]
    state = model.state_dict()
    attach_align_device_hook(model, CPU, offload=True, weights_map=state)
    assert set(hooks(model)) == {"", "embed", "head", *(f"blocks.{i}.{n}" for i in range(4) for n in ("up", "down"))}
    assert torch.equal(hooks(model)["blocks.2.up"].weights_map["weight"], state["blocks.2.up.weight"])
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert torch.equal(model(ids)["logits"], expected)


def test_preloaded_classes_come_as_a_whole() -> None:
    class Direct(nn.Module):
        """Uses its child's weight without calling it."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, self.inner.weight, self.inner.bias)

    model = nn.Sequential(Direct())
    expected, state = model(X), model.state_dict()
    attach_align_device_hook(model, CPU, offload=True, weights_map=state)
    with pytest.raises((RuntimeError, NotImplementedError)):
        model(X)
    remove_hook_from_submodules(model)
    attach_align_device_hook(model, CPU, offload=True, weights_map=state, preload_module_classes=["Direct"])
    assert set(hooks(model)) == {"0"} and hooks(model)["0"].place_submodules
    assert torch.equal(model(X), expected)
    assert places(model) == {"meta"}


def test_blocks_by_map() -> None:
    model = net()
    expected = model(X)
    attach_align_device_hook_on_blocks(
        model,
        execution_device={"first": CPU, "norm": CPU, "last": CPU},
        offload={"first": False, "norm": True, "last": True},
        weights_map=model.state_dict(),
    )
    assert hooks(model)[""].io_same_device and not hooks(model)["first"].offload and hooks(model)["last"].offload
    assert places(model.first) == {"cpu"} and places(model.last) == {"meta"}
    assert torch.equal(model(X), expected)


@pytest.mark.parametrize("offload", [False, True])
def test_blocks_by_single_values(offload: bool) -> None:
    model = net()
    expected, state = model(X), model.state_dict()
    attach_align_device_hook_on_blocks(model, execution_device=CPU, offload=offload, weights_map=state)
    assert ({p.device.type for p in model.parameters()} == {"meta"}) is offload
    assert torch.equal(model(X), expected)


def test_own_tensors_of_a_split_module_follow_the_map() -> None:
    model = nn.Sequential(language())
    ids = torch.arange(6).reshape(2, 3)
    expected = model(ids)["logits"]
    names = ["0.shift", "0.embed", "0.head", *(f"0.blocks.{i}" for i in range(4))]
    attach_align_device_hook_on_blocks(
        model,
        execution_device=dict.fromkeys(names, CPU) | {"": CPU},
        offload={name: name == "0.shift" for name in names},
        weights_map=model.state_dict(),
    )
    assert model[0].shift.device.type == "meta" and model[0].scale.device.type == "cpu"
    assert torch.equal(model(ids)["logits"], expected)


def test_shared_memory_is_brought_once_and_let_go() -> None:
    value = torch.rand(2, 2)
    shared: Any = {value.data_ptr(): {}}
    outer, inner = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    for layer in (outer, inner):
        hook = AlignDevicesHook("cpu", offload=True, weights_map={"weight": value}, tied_params_map=shared)
        add_hook_to_module(layer, hook)
    outer._hf_hook.pre_forward(outer)  # type: ignore[operator,union-attr]
    inner._hf_hook.pre_forward(inner)  # type: ignore[operator,union-attr]
    assert outer.weight is inner.weight
    inner._hf_hook.post_forward(inner, None)  # type: ignore[operator,union-attr]
    assert shared[value.data_ptr()][CPU] is outer.weight  # still in use by the one that brought it
    outer._hf_hook.post_forward(outer, None)  # type: ignore[operator,union-attr]
    assert shared == {value.data_ptr(): {}}


def test_what_came_from_disk_stays_there_when_hooks_come_off(tmp_path: Path) -> None:
    layer = net().first
    offload_state_dict(tmp_path, layer.state_dict())
    layer.to("meta")
    add_hook_to_module(layer, AlignDevicesHook("cpu", True, weights_map=OffloadedWeightsLoader(save_folder=tmp_path)))
    assert torch.equal(layer(X), net().first(X))
    remove_hook_from_module(layer)
    assert places(layer) == {"meta"}


def test_gradients_of_inputs_flow_through_offloaded_layers() -> None:
    layer = net().first
    x = X.clone().requires_grad_()
    (expected,) = torch.autograd.grad(layer(x).sum(), x)
    add_hook_to_module(layer, AlignDevicesHook("cpu", offload=True))
    (found,) = torch.autograd.grad(layer(x).sum(), x)
    assert torch.equal(found, expected)
