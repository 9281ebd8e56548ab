"""Hooks around a forward: their order, their traces, and that none are left."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from accelerate.offload.hooks import (
    ModelHook,
    SequentialHook,
    add_hook_to_module,
    remove_hook_from_module,
    remove_hook_from_submodules,
)
from unit.offload.models import net


class Note(ModelHook):
    """Writes down what happens, and adds to inputs and outputs."""

    def __init__(self, name: str, log: list[str], add: float = 0.0) -> None:
        self.name, self.log, self.add = name, log, add

    def init_hook(self, module: nn.Module) -> nn.Module:
        self.log.append(f"{self.name} init")
        return module

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        self.log.append(f"{self.name} pre")
        return (args[0] + self.add, *args[1:]), kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        self.log.append(f"{self.name} post")
        return output + self.add

    def detach_hook(self, module: nn.Module) -> nn.Module:
        self.log.append(f"{self.name} detach")
        return module


class Linear(nn.Linear):
    def forward(self, x: torch.Tensor, *, twice: bool = False) -> torch.Tensor:
        """Doubles when asked."""
        return super().forward(x) * (2 if twice else 1)


def test_hook_sees_inputs_and_outputs() -> None:
    layer, log = Linear(2, 2), list[str]()
    x = torch.rand(1, 2)
    expected = layer(x + 1, twice=True) + 1
    assert add_hook_to_module(layer, Note("a", log, add=1.0)) is layer
    assert torch.equal(layer(x, twice=True), expected)
    assert log == ["a init", "a pre", "a post"]


def test_removed_hook_leaves_no_trace() -> None:
    layer, log = Linear(2, 2), list[str]()
    before, x = set(vars(layer)), torch.rand(1, 2)
    expected = layer(x)
    add_hook_to_module(layer, Note("a", log, add=1.0))
    assert set(vars(layer)) - before == {"_hf_hook", "_old_forward", "forward"}
    remove_hook_from_module(layer)
    assert set(vars(layer)) == before
    assert torch.equal(layer(x), expected) and log[-1] == "a detach"
    pickle.dumps(layer.state_dict())
    assert remove_hook_from_module(layer) is layer  # nothing there: nothing happens


def test_forward_set_on_the_object_comes_back() -> None:
    layer = nn.Linear(2, 2)
    own = lambda x: x * 0 + 5
    layer.forward = own  # type: ignore[method-assign]
    add_hook_to_module(layer, ModelHook())
    assert layer(torch.ones(1)).item() == 5
    remove_hook_from_module(layer)
    assert layer.forward is own


def test_signature_and_name_of_the_forward_are_kept() -> None:
    layer = Linear(2, 2)
    plain = inspect.signature(layer.forward)
    add_hook_to_module(layer, ModelHook())
    assert inspect.signature(layer.forward) == plain
    assert layer.forward.__name__ == "forward" and layer.forward.__doc__ == "Doubles when asked."


def test_append_runs_both_in_order_and_inits_each_once() -> None:
    layer, log = nn.Linear(2, 2), list[str]()
    first, second, third = Note("a", log), Note("b", log), Note("c", log)
    add_hook_to_module(layer, first)
    add_hook_to_module(layer, second, append=True)
    add_hook_to_module(layer, third, append=True)
    hook: Any = layer._hf_hook
    assert isinstance(hook, SequentialHook) and hook.hooks == (first, second, third)
    layer(torch.rand(1, 2))
    remove_hook_from_module(layer)
    order = ["init", "pre", "post", "detach"]
    assert log == [f"{name} {step}" for step in order for name in "abc"]


def test_without_append_the_hook_is_replaced() -> None:
    layer, log = nn.Linear(2, 2), list[str]()
    x = torch.rand(1, 2)
    expected = layer(x) + 2
    add_hook_to_module(layer, Note("a", log, add=9.0))
    add_hook_to_module(layer, Note("b", log))
    layer._hf_hook.add = 2.0  # type: ignore[union-attr]
    assert torch.allclose(layer(x), layer._old_forward(x + 2) + 2)  # type: ignore[operator]
    assert "a detach" not in log
    remove_hook_from_module(layer)
    assert torch.equal(layer(x) + 2, expected)


def test_hooks_may_run_without_gradients() -> None:
    class Quiet(ModelHook):
        no_grad = True

    layer = nn.Linear(2, 2)
    add_hook_to_module(layer, ModelHook())
    assert layer(torch.rand(1, 2)).requires_grad
    add_hook_to_module(layer, Quiet(), append=True)
    assert not layer(torch.rand(1, 2)).requires_grad


def test_copy_of_a_hooked_module_runs_its_own_weights() -> None:
    layer, log = nn.Linear(2, 2), list[str]()
    add_hook_to_module(layer, Note("a", log, add=1.0))
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.zero_()
    x = torch.rand(1, 2)
    assert torch.equal(twin(x), nn.functional.linear(x + 1, twin.weight, twin.bias) + 1)
    assert torch.equal(layer(x), torch.ones(1, 2))
    remove_hook_from_module(twin)
    assert torch.equal(twin(x), nn.functional.linear(x, twin.weight, twin.bias))


def test_hooked_module_pickles() -> None:
    layer = nn.Linear(2, 2)
    add_hook_to_module(layer, ModelHook())
    twin = pickle.loads(pickle.dumps(layer))
    x = torch.rand(1, 2)
    assert torch.equal(twin(x), layer(x)) and isinstance(twin._hf_hook, ModelHook)


def test_hook_may_replace_the_module() -> None:
    other = nn.Linear(2, 3)

    class Swap(ModelHook):
        def init_hook(self, module: nn.Module) -> nn.Module:
            return other

    layer = nn.Linear(2, 2)
    assert add_hook_to_module(layer, Swap()) is other
    assert hasattr(other, "_hf_hook") and "_old_forward" not in vars(layer)


@pytest.mark.parametrize("remove", [remove_hook_from_submodules, lambda m: remove_hook_from_module(m, recurse=True)])
def test_all_hooks_of_a_model_come_off(remove: Any) -> None:
    model = net()
    for module in model.modules():
        add_hook_to_module(module, ModelHook())
    remove(model)
    assert not any(hasattr(module, "_hf_hook") or "forward" in vars(module) for module in model.modules())
