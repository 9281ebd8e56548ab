"""Nested structures: containers keep their types, only tensors are touched."""

from __future__ import annotations

import pickle
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
import torch
from transformers import BatchEncoding
from transformers.modeling_outputs import BaseModelOutput

from accelerate.comm import nested

Pair = namedtuple("Pair", "left right")


@dataclass
class Record:
    name: str
    value: Any


class Batch(UserDict):  # type: ignore[type-arg]
    """A mapping that is no dict, with an attribute of its own."""

    def __init__(self, data: dict[str, Any], source: str = "") -> None:
        super().__init__(data)
        self.source = source


def halves(size: int = 2) -> torch.Tensor:
    return torch.ones(size, dtype=torch.bfloat16)


def test_apply_keeps_every_container() -> None:
    data = Pair([torch.ones(1), "text"], OrderedDict(a=(torch.ones(1), None), b=defaultdict(list, c=torch.ones(1))))
    result = nested.recursively_apply(lambda tensor, by: tensor * by, data, 3)
    assert type(result) is Pair and type(result.right) is OrderedDict and type(result.right["b"]) is defaultdict
    assert result.right["b"].default_factory is list
    assert result.left[0].item() == 3 and result.left[1] == "text"
    assert result.right["a"][1] is None and result.right["b"]["c"].item() == 3


def test_apply_refuses_on_request() -> None:
    with pytest.raises(TypeError, match="got a str inside"):
        nested.recursively_apply(torch.abs, {"a": "text"}, error_on_other_type=True)


def test_a_mapping_with_attributes_and_a_read_only_one() -> None:
    twin = nested.recursively_apply(lambda tensor: tensor + 1, Batch({"x": torch.zeros(1)}, source="here"))
    assert type(twin) is Batch and twin.source == "here" and twin["x"].item() == 1
    frozen = nested.recursively_apply(lambda tensor: tensor + 1, MappingProxyType({"x": torch.zeros(1)}))
    assert type(frozen) is MappingProxyType and frozen["x"].item() == 1


def test_a_model_output_stays_one() -> None:
    output = nested.convert_to_fp32(BaseModelOutput(last_hidden_state=halves()))
    assert type(output) is BaseModelOutput
    assert output.last_hidden_state.dtype is torch.float32 and output["last_hidden_state"].dtype is torch.float32


def test_structure_and_back() -> None:
    data = {"a": torch.ones(2, 3), "b": ["text", torch.zeros(1, dtype=torch.int64)]}
    structure = nested.get_data_structure(data)
    assert structure["a"] == nested.TensorInformation(shape=torch.Size([2, 3]), dtype=torch.float32)
    assert nested.is_tensor_information(structure["b"][1])
    empty = nested.initialize_tensors(structure)
    assert empty["a"].shape == (2, 3) and empty["b"][0] == "text" and empty["b"][1].dtype is torch.int64
    assert nested.get_shape(data) == {"a": [2, 3], "b": ["text", [1]]}


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (torch.ones(3, 2), 3),
        ({"names": ["a", "b"], "x": torch.ones(2)}, 2),
        ([torch.tensor(1.0), torch.ones(4)], 4),
    ],
)
def test_batch_size(data: Any, size: int) -> None:
    assert nested.find_batch_size(data) == size
    assert nested.ignorant_find_batch_size(data) == size


@pytest.mark.parametrize(("data", "error"), [([], ValueError), ("text", TypeError), (torch.tensor(1.0), TypeError)])
def test_no_batch_size(data: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        nested.find_batch_size(data)
    assert nested.ignorant_find_batch_size(data) is None


def test_find_device() -> None:
    assert nested.find_device({"a": "text", "b": [torch.ones(1)]}) == torch.device("cpu")
    assert nested.find_device({"a": 1}) is None


def test_listify_takes_bfloat16() -> None:
    data = {"a": halves(), "b": torch.arange(2), "c": "text"}
    assert nested.listify(data) == {"a": [1.0, 1.0], "b": [0, 1], "c": "text"}


def test_concatenate() -> None:
    first = {"x": torch.zeros(2), "names": ["a", "b"], "kind": "train", "p": (torch.ones(1), None)}
    second = {"x": torch.ones(1), "names": ["c"], "kind": "train", "p": (torch.ones(2), None)}
    joined = nested.concatenate([first, second])
    assert joined["x"].tolist() == [0, 0, 1]
    assert joined["names"] == ["a", "b", "c"] and joined["kind"] == "train"
    assert joined["p"][0].shape == (3,) and joined["p"][1] is None
    assert nested.concatenate([torch.ones(1, 2), torch.ones(1, 1)], dim=1).shape == (1, 3)


def test_concatenate_refuses_what_differs() -> None:
    with pytest.raises(TypeError, match="'train'"):
        nested.concatenate([{"kind": "train"}, {"kind": "test"}])


def test_slice() -> None:
    data = {"x": torch.arange(6), "scalar": torch.tensor(1), "name": "text"}
    part = nested.slice_tensors(data, slice(2, 4), 1, 3)
    assert part["x"].tolist() == [2, 3] and part["scalar"].item() == 1 and part["name"] == "text"


def test_pad_input_tensors() -> None:
    padded = nested.pad_input_tensors({"x": torch.arange(4), "other": torch.ones(2)}, 4, 3)
    assert padded["x"].tolist() == [0, 1, 2, 3, 0, 0] and padded["other"].shape == (2,)
    whole = torch.ones(6, 2)
    assert nested.pad_input_tensors(whole, 6, 3) is whole
    assert nested.pad_input_tensors(torch.ones(2, 3), 3, 2, dim=1).shape == (2, 4)


# ---- moving


def test_nothing_to_move_is_the_same_object() -> None:
    batch = {"x": torch.ones(1), "list": [torch.ones(1), "a"], "pair": Pair(torch.ones(1), 2), "record": Record("r", 1)}
    assert nested.send_to_device(batch, "cpu") is batch
    for data in (Batch({"x": torch.ones(1)}), BatchEncoding({"x": torch.ones(1)}), [torch.ones(1)], "text", None):
        assert nested.send_to_device(data, torch.device("cpu")) is data


def test_only_tensors_move() -> None:
    record, names = Record("r", torch.ones(1)), ["a", "b"]
    batch = {"x": torch.ones(1), "names": names, "flag": True, "nothing": None, "record": record, "deep": {"y": 1}}
    moved = nested.send_to_device(batch, "meta")
    assert moved is not batch and batch["x"].device.type == "cpu"
    assert moved["x"].device.type == "meta"
    assert moved["names"] is names and moved["flag"] is True and moved["nothing"] is None
    assert moved["record"] is record and moved["deep"] is batch["deep"]
    assert list(moved) == list(batch)


def test_moving_keeps_types() -> None:
    moved = nested.send_to_device(
        Pair(Batch({"x": torch.ones(1)}, source="here"), OrderedDict(a=[torch.ones(1)])), "meta"
    )
    assert type(moved) is Pair and type(moved.left) is Batch and moved.left.source == "here"
    assert moved.left["x"].is_meta and type(moved.right) is OrderedDict and moved.right["a"][0].is_meta
    parameter = nested.send_to_device([torch.nn.Parameter(torch.ones(1))], "meta")
    assert parameter[0].is_meta


def test_a_sequence_whose_last_item_moves() -> None:
    batch = ["a", torch.ones(1, device="meta"), (1, torch.ones(1))]
    moved = nested.send_to_device(batch, "meta")
    assert type(moved) is list and moved[:2] == batch[:2] and moved[1] is batch[1]
    assert type(moved[2]) is tuple and moved[2][0] == 1 and moved[2][1].is_meta
    sizes = torch.Size([1, 2])
    assert nested.send_to_device(sizes, "meta") is sizes


def test_skip_keys_at_any_depth() -> None:
    batch = {"x": torch.ones(1), "deep": {"x": torch.ones(1), "y": torch.ones(1)}}
    moved = nested.send_to_device(batch, "meta", skip_keys="x")
    assert not moved["x"].is_meta and not moved["deep"]["x"].is_meta and moved["deep"]["y"].is_meta
    moved = nested.send_to_device(batch, "meta", skip_keys=["x", "deep"])
    assert moved is batch


def test_objects_that_move_themselves() -> None:
    class Graph:
        device = "cpu"

        def to(self, device: torch.device) -> Graph:  # takes no non_blocking
            self.device = device.type
            return self

    batch = {"graph": Graph(), "encoding": BatchEncoding({"x": torch.ones(1)})}
    moved = nested.send_to_device(batch, "meta", non_blocking=True)
    assert moved["graph"].device == "meta" and moved["encoding"]["x"].is_meta
    skipped = nested.send_to_device(BatchEncoding({"x": torch.ones(1), "y": torch.ones(1)}), "meta", skip_keys="y")
    assert type(skipped) is BatchEncoding and skipped["x"].is_meta and not skipped["y"].is_meta


# ---- float32


def double(tensor: torch.Tensor) -> dict[str, Any]:
    """Twice as much."""
    return {"y": tensor * 2, "n": torch.arange(1)}


def test_outputs_in_float32() -> None:
    wrapped = nested.convert_outputs_to_fp32(double)
    result = wrapped(halves())
    assert result["y"].dtype is torch.float32 and result["n"].dtype is torch.int64
    assert wrapped.__name__ == "double" and wrapped.__doc__ == "Twice as much." and wrapped.__wrapped__ is double


def test_the_wrapper_pickles() -> None:
    again = pickle.loads(pickle.dumps(nested.ConvertOutputsToFp32(double)))
    assert again(halves())["y"].dtype is torch.float32
