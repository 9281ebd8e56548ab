"""State of models and optimizers that a rank holds whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from accelerate.checkpoint.adapter import OptimizerState
from accelerate.checkpoint.optimizer_state import to_torch_layout
from accelerate.checkpoint.plain import PlainStateAdapter, tied_names
from accelerate.errors import CheckpointMismatchError

adapter = PlainStateAdapter(lambda model: model)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 5, bias=False)
        self.embed = nn.Embedding(5, 3)
        self.head.weight = self.embed.weight


def stepped(model: nn.Module, make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW) -> Any:
    optimizer = make(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def test_tied_tensors_are_kept_once_under_the_first_name() -> None:
    state = adapter.model_state(Tied())
    assert list(state.tensors) == ["head.weight"]
    assert state.aliases == {"embed.weight": "head.weight"}


def test_a_model_may_say_which_of_tied_names_is_left_out() -> None:
    model = Tied()
    model._tied_weights_keys = ["head.weight"]
    state = adapter.model_state(model)
    assert list(state.tensors) == ["embed.weight"]
    assert state.aliases == {"head.weight": "embed.weight"}


def test_views_that_overlap_without_being_equal_are_not_tied() -> None:
    base = torch.arange(6.0)
    assert tied_names({"whole": base, "part": base[:3], "same": base.view(6), "turned": base.view(2, 3).t()}) == {
        "same": "whole"
    }


def test_no_tensor_is_copied() -> None:
    model = nn.Linear(2, 2)
    assert adapter.model_state(model).tensors["weight"].data_ptr() == model.weight.data_ptr()


def test_loading_is_in_place_and_by_name() -> None:
    model, source = nn.Linear(2, 2), nn.Linear(2, 2)
    before = model.weight
    tensors = dict(reversed(list(adapter.model_state(source).tensors.items())))
    report = adapter.load_model_state(model, tensors)
    assert model.weight is before
    assert torch.equal(model.weight, source.weight)
    assert set(report.restored) == {"weight", "bias"}


def test_one_name_of_a_tied_pair_is_enough() -> None:
    model, source = Tied(), Tied()
    report = adapter.load_model_state(model, {"embed.weight": source.embed.weight.detach()})
    assert not report.missing
    assert torch.equal(model.head.weight, source.head.weight)


def test_a_mismatch_lists_both_sides_and_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    found = {"0.weight": torch.zeros(2, 2), "0.bias": torch.zeros(3), "2.weight": torch.zeros(1)}
    with pytest.raises(CheckpointMismatchError) as raised:
        adapter.load_model_state(model, found)
    for text in ("0.bias (2,)", "0.bias (3,)", "1.weight (3, 2)", "2.weight (1,)"):
        assert text in str(raised.value)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_what_fits_is_restored_where_asked() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
    report = adapter.load_model_state(model, {"0.weight": torch.zeros(2, 2), "x": torch.zeros(1)}, strict=False)
    assert report.restored == ("0.weight",)
    assert len(report.missing) == 3
    assert len(report.unexpected) == 1
    assert model[0].weight.abs().sum() == 0


def test_extra_state_that_is_no_tensor_goes_beside() -> None:
    class Counting(nn.Linear):
        calls = 3

        def get_extra_state(self) -> Any:
            return {"calls": self.calls}

        def set_extra_state(self, state: Any) -> None:
            self.calls = state["calls"]

    model, target = Counting(1, 1), Counting(1, 1)
    state = adapter.model_state(model)
    assert state.metadata == {"extra_state": {"_extra_state": {"calls": 3}}}
    target.calls = 0
    adapter.load_model_state(target, {**state.tensors, **state.metadata["extra_state"]})
    assert target.calls == 3


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad])
def test_optimizer_state_by_name_survives_another_order_of_parameters(make: Any) -> None:
    model = nn.Linear(2, 3)
    optimizer = stepped(model, make)
    state = adapter.optimizer_state(optimizer, [model])
    assert state.param_groups[0]["params"] == ["weight", "bias"]

    other = nn.Linear(2, 3)
    turned = make(reversed(list(other.parameters())), lr=0.5)
    adapter.load_optimizer_state(turned, [other], state)
    assert turned.param_groups[0]["lr"] == 0.1
    for key, value in optimizer.state[model.weight].items():
        assert torch.equal(torch.as_tensor(turned.state[other.weight][key]), torch.as_tensor(value))


def test_the_file_layout_is_torchs_own() -> None:
    model = nn.Linear(2, 3)
    optimizer = stepped(model)
    own, made = optimizer.state_dict(), to_torch_layout(adapter.optimizer_state(optimizer, [model]))
    assert made["param_groups"] == own["param_groups"]
    assert made["state"].keys() == own["state"].keys()
    torch.optim.AdamW(nn.Linear(2, 3).parameters()).load_state_dict(made)


def test_loaded_state_has_memory_of_its_own() -> None:
    model = nn.Linear(300, 300)
    optimizer = stepped(model)
    state = adapter.optimizer_state(optimizer, [model])
    other = nn.Linear(300, 300)
    target = torch.optim.AdamW(other.parameters())
    adapter.load_optimizer_state(target, [other], state)
    assert target.state[other.weight]["exp_avg"].data_ptr() != optimizer.state[model.weight]["exp_avg"].data_ptr()


def test_groups_parted_differently_are_a_mismatch_that_changes_nothing() -> None:
    model = nn.Linear(2, 3)
    state = adapter.optimizer_state(stepped(model), [model])
    target = torch.optim.AdamW([{"params": [model.weight]}, {"params": [model.bias], "weight_decay": 0.0}], lr=0.7)
    with pytest.raises(CheckpointMismatchError, match="weight"):
        adapter.load_optimizer_state(target, [model], state)
    assert not target.state
    assert target.param_groups[0]["lr"] == 0.7


def test_state_of_another_shape_is_a_mismatch() -> None:
    model, wide = nn.Linear(2, 3), nn.Linear(4, 3)
    state = adapter.optimizer_state(stepped(wide), [wide])
    with pytest.raises(CheckpointMismatchError, match=r"\(3, 4\)"):
        adapter.load_optimizer_state(torch.optim.AdamW(model.parameters()), [model], state)


def test_an_optimizer_of_another_layout_is_kept_whole() -> None:
    class Odd(torch.optim.SGD):
        seen: Any = None

        def state_dict(self) -> Any:
            return {"mine": 1}

        def load_state_dict(self, state: Any) -> None:
            self.seen = state

    model = nn.Linear(1, 1)
    state = adapter.optimizer_state(Odd(model.parameters(), lr=0.1), [model])
    assert to_torch_layout(state) == {"mine": 1}
    target = Odd(model.parameters(), lr=0.1)
    adapter.load_optimizer_state(target, [model], state)
    assert target.seen == {"mine": 1}


def test_keys_beside_state_and_groups_are_kept() -> None:
    state = OptimizerState(state={"w": {"step": 1}}, param_groups=[{"lr": 1, "params": ["w"]}], extra={"k": 5})
    assert to_torch_layout(state) == {"state": {0: {"step": 1}}, "param_groups": [{"lr": 1, "params": [0]}], "k": 5}


def test_the_compile_wrapper_is_taken_off() -> None:
    model = nn.Linear(2, 2)
    compiled = torch.compile(model, backend="eager")
    assert adapter.bare(compiled) is model
    assert list(adapter.full_state_dict(compiled)) == ["weight", "bias"]
