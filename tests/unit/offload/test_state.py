"""The state of models that are elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from accelerate.offload.align import AlignDevicesHook
from accelerate.offload.dispatch import cpu_offload, dispatch_model
from accelerate.offload.hooks import ModelHook, add_hook_to_module
from accelerate.offload.state import get_state_dict_from_offload, get_state_dict_offloaded_model, offloading_hook
from unit.offload.models import language, net


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)


def test_whole_state_of_offloaded_models(tmp_path: Path) -> None:
    expected = language().state_dict()
    assert equal(get_state_dict_offloaded_model(language()), expected)
    assert equal(get_state_dict_offloaded_model(cpu_offload(language(), torch.device("cpu"))), expected)
    places = dict.fromkeys(("shift", "embed", "head"), "cpu") | {"blocks": "disk"}
    assert equal(get_state_dict_offloaded_model(dispatch_model(language(), places, offload_dir=tmp_path)), expected)


def test_state_of_blocks_that_come_as_a_whole() -> None:
    model = net()
    add_hook_to_module(model, AlignDevicesHook("cpu", offload=True, place_submodules=True, offload_buffers=True))
    add_hook_to_module(model, ModelHook(), append=True)
    assert offloading_hook(model) is not None
    assert equal(get_state_dict_offloaded_model(model), net().state_dict())


def test_tensor_nobody_has_is_named() -> None:
    model = net()
    model.last.to("meta")
    with pytest.raises(RuntimeError, match=r"no hook has their data: last\.bias, last\.weight"):
        get_state_dict_offloaded_model(model)


def test_entries_of_one_module_are_filled_in() -> None:
    model = cpu_offload(net(), torch.device("cpu"))
    state: dict[str, Any] = {"a.first.weight": None, "a.first.bias": None, "a.last.bias": None}
    assert get_state_dict_from_offload(model.first, "a.first.weight", state) is state
    assert torch.equal(state["a.first.weight"], net().first.weight) and state["a.last.bias"] is None
    assert model.first.weight.device.type == "meta"
    plain: dict[str, Any] = {"weight": None}
    get_state_dict_from_offload(net().first, "weight", plain)
    assert torch.equal(plain["weight"], net().first.weight) and list(plain) == ["weight"]
