"""Parameters keep their names whatever wraps them."""

from __future__ import annotations

import torch
from torch import nn

from accelerate.checkpoint.naming import (
    canonical_map,
    canonical_name,
    canonical_parameters,
    parameter_names,
    strip_markers,
)


class DistributedDataParallel(nn.Module):
    """Recognised by its name, as the real one is, without a process group."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)
        self.head = nn.Linear(2, 1)


def test_markers_go_wherever_they_stand() -> None:
    assert strip_markers("_orig_mod.a._fsdp_wrapped_module.b._checkpoint_wrapped_module.weight") == "a.b.weight"
    assert strip_markers("plain.weight") == "plain.weight"
    assert canonical_name("module.module._orig_mod.a.weight") == "a.weight"


def test_a_wrappers_module_goes_and_the_users_own_stays() -> None:
    wrapped = DistributedDataParallel(Inner())
    names = canonical_map(wrapped, wrapped.state_dict())
    assert names == {
        "module.weight": "module.module.weight",
        "module.bias": "module.module.bias",
        "head.weight": "module.head.weight",
        "head.bias": "module.head.bias",
    }


def test_compiled_parts_have_clean_names() -> None:
    model = nn.Sequential(torch.compile(nn.Linear(2, 2), backend="eager"), nn.Linear(2, 2))
    assert [name for name, _ in canonical_parameters(model)] == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_optimizer_of_one_model_has_plain_names() -> None:
    model, other = nn.Linear(2, 2), nn.Linear(3, 3)
    optimizer = torch.optim.SGD([{"params": [model.bias]}, {"params": [model.weight]}], lr=0.1)
    assert parameter_names(optimizer, [other, model]) == ([["bias"], ["weight"]], True)


def test_optimizer_of_two_models_says_which() -> None:
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.1)
    assert parameter_names(optimizer, [a, b])[0] == [["0/weight", "0/bias", "1/weight", "1/bias"]]
    # A place may be kept by None: names do not move.
    alone = torch.optim.SGD([*b.parameters(), torch.nn.Parameter(torch.ones(1))], lr=0.1)
    assert parameter_names(alone, [None, b]) == ([["weight", "bias", "0.2"]], False)
