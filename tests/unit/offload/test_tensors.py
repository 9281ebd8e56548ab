"""Single tensors of a module: found, moved, replaced."""

from __future__ import annotations

from collections.abc import MutableMapping

import pytest
import torch
from torch import nn

from accelerate.offload.align import AlignDevicesHook
from accelerate.offload.hooks import add_hook_to_module
from accelerate.offload.tensors import (
    align_module_device,
    check_device_same,
    get_non_persistent_buffers,
    has_offloaded_params,
    id_tensor_storage,
    named_module_tensors,
    set_module_tensor_to_device,
)
from unit.offload.models import language, net

CPU = torch.device("cpu")


def test_names_of_tensors() -> None:
    model = net()
    assert [name for name, _ in named_module_tensors(model)] == []
    assert [name for name, _ in named_module_tensors(model.norm)] == [
        "weight",
        "bias",
        "running_mean",
        "running_var",
        "num_batches_tracked",
    ]
    assert [name for name, _ in named_module_tensors(model.norm, include_buffers=False)] == ["weight", "bias"]
    assert len(list(named_module_tensors(model, recurse=True))) == 9


def test_buffers_that_are_not_saved() -> None:
    model = nn.Sequential(language())
    assert get_non_persistent_buffers(model) == set()
    assert get_non_persistent_buffers(model, recurse=True) == {"scale"}
    assert get_non_persistent_buffers(model, recurse=True, fqns=True) == {"0.scale"}
    names = [name for name, _ in named_module_tensors(model, recurse=True, remove_non_persistent=True)]
    assert "0.shift" in names and "0.scale" not in names


def test_storage_identity() -> None:
    whole = torch.zeros(4)
    assert id_tensor_storage(whole) == id_tensor_storage(whole[:2])
    assert id_tensor_storage(whole) != id_tensor_storage(torch.zeros(4))
    assert id_tensor_storage(whole)[2] == 16
    empty = torch.empty(4, device="meta")
    assert id_tensor_storage(empty) == id_tensor_storage(empty[:2])
    assert id_tensor_storage(empty) != id_tensor_storage(torch.empty(4, device="meta"))


def test_same_device() -> None:
    assert check_device_same("cpu", CPU)
    assert check_device_same("cuda", "cuda:0")
    assert not check_device_same("cuda:1", "cuda")
    assert not check_device_same("cpu", "meta")


def test_move_to_meta_and_back_with_a_value() -> None:
    layer = nn.Linear(2, 3)
    layer.weight.requires_grad_(False)
    set_module_tensor_to_device(layer, "weight", "meta")
    assert layer.weight.device.type == "meta"
    assert not layer.weight.requires_grad and isinstance(layer.weight, nn.Parameter)
    with pytest.raises(ValueError, match="'weight' is on the meta device"):
        set_module_tensor_to_device(layer, "weight", "cpu")
    value = torch.rand(3, 2)
    set_module_tensor_to_device(layer, "weight", "cpu", value=value)
    assert torch.equal(layer.weight, value) and not layer.weight.requires_grad
    assert layer.weight.data_ptr() == value.data_ptr()  # nothing is copied that need not be


def test_same_place_changes_nothing() -> None:
    layer = nn.Linear(2, 3)
    before = layer.weight
    set_module_tensor_to_device(layer, "weight", "cpu")
    assert layer.weight is before


@pytest.mark.parametrize(
    ("dtype", "value_dtype", "result"),
    [
        (None, torch.float16, torch.float32),
        (torch.bfloat16, torch.float32, torch.bfloat16),
        ("float16", torch.float32, torch.float16),
        (torch.float16, torch.int64, torch.int64),
    ],
)
def test_dtype_of_a_value(dtype: torch.dtype | str | None, value_dtype: torch.dtype, result: torch.dtype) -> None:
    layer = nn.Linear(2, 3)
    layer.register_buffer("numbers", torch.zeros(3))
    set_module_tensor_to_device(layer, "numbers", "cpu", value=torch.ones(3, dtype=value_dtype), dtype=dtype)
    assert layer.numbers.dtype is result
    assert layer.numbers.sum().item() == 3


def test_buffers_stay_buffers_and_dotted_names_reach() -> None:
    model = nn.Sequential(net())
    set_module_tensor_to_device(model, "0.norm.running_mean", "cpu", value=torch.full((4,), 7.0))
    norm = model[0].norm
    assert torch.equal(norm.running_mean, torch.full((4,), 7.0))
    assert "running_mean" in norm._buffers and "running_mean" not in norm._parameters


def test_parameter_that_was_left_out_can_be_filled() -> None:
    layer = nn.Linear(2, 3, bias=False)
    set_module_tensor_to_device(layer, "bias", "cpu")
    assert layer.bias is None
    set_module_tensor_to_device(layer, "bias", "cpu", value=torch.ones(3))
    assert isinstance(layer.bias, nn.Parameter)


def test_attributes_of_a_parameter_are_kept() -> None:
    layer = nn.Linear(2, 3)
    layer.weight.owner = "me"  # type: ignore[attr-defined]
    set_module_tensor_to_device(layer, "weight", "cpu", value=torch.zeros(3, 2))
    assert layer.weight.owner == "me"  # type: ignore[attr-defined]


def test_kinds_of_parameters_are_kept() -> None:
    class Packed(nn.Parameter):
        def __new__(cls, data: torch.Tensor, requires_grad: bool = True, bits: int = 0) -> Packed:
            made = super().__new__(cls, data, requires_grad)
            made.bits = bits  # type: ignore[attr-defined]
            return made

    layer = nn.Linear(2, 3)
    layer.weight = Packed(torch.zeros(3, 2), requires_grad=False, bits=4)
    set_module_tensor_to_device(layer, "weight", "cpu", value=torch.ones(3, 2))
    assert type(layer.weight) is Packed
    assert layer.weight.bits == 4 and not layer.weight.requires_grad  # type: ignore[attr-defined]


def test_wrong_names_and_shapes_are_named() -> None:
    layer = nn.Linear(2, 3)
    with pytest.raises(ValueError, match="no parameter or buffer 'weigth'"):
        set_module_tensor_to_device(layer, "weigth", "cpu")
    with pytest.raises(ValueError, match="no module 'inner'"):
        set_module_tensor_to_device(layer, "inner.weight", "cpu")
    with pytest.raises(ValueError, match=r"\(3, 2\) in the model and \(2, 2\)"):
        set_module_tensor_to_device(layer, "weight", "cpu", value=torch.zeros(2, 2))


def test_statistics_of_8_bit_weights() -> None:
    layer = nn.Linear(2, 3)
    set_module_tensor_to_device(layer, "weight", "cpu", value=torch.ones(3, 2), fp16_statistics=torch.ones(3))
    assert torch.equal(layer.weight.SCB, torch.ones(3))  # type: ignore[attr-defined]


def test_tensors_that_share_memory_arrive_once() -> None:
    model = language().to("meta")
    value = torch.rand(100, 10)
    shared: MutableMapping[int, MutableMapping[torch.device, torch.Tensor]] = {value.data_ptr(): {}}
    for name in ("embed.weight", "head.weight"):
        set_module_tensor_to_device(model, name, "cpu", value=value, tied_params_map=shared)
    assert model.embed.weight is model.head.weight
    assert shared[value.data_ptr()][CPU] is model.embed.weight


def test_align_moves_there_and_back_with_changes() -> None:
    layer = nn.Linear(2, 3)
    weight, bias = layer.weight, layer.bias
    with align_module_device(layer, torch.device("meta")):
        assert layer.weight.device.type == "meta"
    assert layer.weight is weight and layer.bias is bias
    with align_module_device(layer, CPU):
        layer.weight.data.fill_(3.0)
    assert layer.weight is weight and torch.equal(weight, torch.full((3, 2), 3.0))
    with align_module_device(layer):
        assert layer.weight is weight


def test_align_brings_in_what_a_hook_offloads() -> None:
    layer = nn.Linear(2, 3)
    value = layer.weight.detach().clone()
    assert not has_offloaded_params(layer)
    add_hook_to_module(layer, AlignDevicesHook(execution_device="cpu", offload=True))
    assert has_offloaded_params(layer)
    assert layer.weight.device.type == "meta"
    with align_module_device(layer):
        assert torch.equal(layer.weight, value)
    assert layer.weight.device.type == "meta"
