"""Weights in a folder come back bit for bit."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from accelerate.offload.disk import (
    OffloadedWeightsLoader,
    PrefixedDataset,
    extract_submodules_state_dict,
    load_offloaded_weight,
    offload_state_dict,
    offload_weight,
    save_offload_index,
)

VALUES = {
    "a.float": torch.rand(2, 3),
    "a.half": torch.rand(2).half(),
    "a.brain": torch.rand(3, 2).bfloat16(),
    "a.eighth": torch.rand(4).to(torch.float8_e4m3fn),
    "b.long": torch.tensor([1, -2]),
    "b.scalar": torch.tensor(3.5),
    "b.flag": torch.tensor([True, False]),
    "b.empty": torch.empty(0, 4),
    "b.part": torch.rand(4, 4)[:, 1:3],
}


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.dtype is torch.float8_e4m3fn:
        left, right = left.view(torch.uint8), right.view(torch.uint8)
    return left.dtype == right.dtype and torch.equal(left, right)


def test_every_kind_of_tensor_comes_back(tmp_path: Path) -> None:
    offload_state_dict(tmp_path, VALUES)
    loader = OffloadedWeightsLoader(save_folder=tmp_path)
    assert sorted(loader) == sorted(VALUES) and len(loader) == len(VALUES)
    for name, value in VALUES.items():
        assert same(loader[name], value), name


def test_files_and_index_are_what_others_read(tmp_path: Path) -> None:
    index = offload_weight(torch.tensor([1.0, 2.0]), "w", tmp_path, {})
    assert index == {"w": {"dtype": "float32", "shape": [2]}}
    assert (tmp_path / "w.dat").read_bytes() == bytes.fromhex("0000803f00000040")
    assert offload_weight(torch.zeros(1), "x", tmp_path) is None


def test_index_grows(tmp_path: Path) -> None:
    save_offload_index(None, tmp_path)
    save_offload_index({}, tmp_path)
    assert list(tmp_path.iterdir()) == []
    save_offload_index({"a": {"dtype": "int64", "shape": []}}, tmp_path)
    save_offload_index({"b": {"dtype": "int64", "shape": [1]}}, tmp_path)
    assert sorted(json.loads((tmp_path / "index.json").read_text())) == ["a", "b"]


def test_loaded_weight_can_be_changed_and_the_file_stays(tmp_path: Path) -> None:
    index = offload_weight(torch.zeros(3), "w", tmp_path, {})
    assert index is not None
    first = load_offloaded_weight(tmp_path / "w.dat", index["w"])
    first.add_(1)
    assert torch.equal(load_offloaded_weight(tmp_path / "w.dat", index["w"]), torch.zeros(3))


def test_meta_tensor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'w' is on the meta device"):
        offload_weight(torch.empty(2, device="meta"), "w", tmp_path)


def test_entries_may_point_into_safetensors(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    save_file({"inner.w": torch.tensor([1.5, 2.5]), "plain": torch.tensor([1.0])}, file)
    index = {
        "outer.w": {"safetensors_file": str(file), "weight_name": "inner.w", "dtype": "bfloat16"},
        "plain": {"safetensors_file": str(file)},
    }
    loader = OffloadedWeightsLoader(index=index)
    assert same(loader["outer.w"], torch.tensor([1.5, 2.5], dtype=torch.bfloat16))
    assert same(loader["plain"], torch.tensor([1.0]))
    again = pickle.loads(pickle.dumps(loader))
    assert same(again["plain"], torch.tensor([1.0]))


def test_memory_comes_before_disk(tmp_path: Path) -> None:
    offload_state_dict(tmp_path, {"a": torch.zeros(1), "b": torch.zeros(1)})
    loader = OffloadedWeightsLoader(state_dict={"a": torch.ones(1)}, save_folder=tmp_path)
    assert loader["a"].item() == 1 and loader["b"].item() == 0
    assert loader.all_keys == ["a", "b"] and "c" not in loader and "b" in loader
    with pytest.raises(KeyError):
        loader["c"]


def test_loader_needs_a_source() -> None:
    with pytest.raises(ValueError, match="`state_dict`, a `save_folder` or an `index`"):
        OffloadedWeightsLoader()
    with pytest.raises(ValueError, match="'a' has no file"):
        OffloadedWeightsLoader(index={"a": {"dtype": "int64", "shape": []}})["a"]


def test_prefixed_view() -> None:
    view = PrefixedDataset({"a.x": 1, "a.y.z": 2, "ab": 3}, "a.")
    assert dict(view) == {"x": 1, "y.z": 2} and len(view) == 2
    assert "x" in view and "b" not in view
    assert PrefixedDataset(view, "y.")["z"] == 2


def test_asking_whether_a_weight_is_there_reads_nothing(tmp_path: Path) -> None:
    loader = OffloadedWeightsLoader(save_folder=tmp_path, index={"a.x": {"dtype": "float32", "shape": [1]}})
    assert "x" in PrefixedDataset(loader, "a.")


def test_submodules_of_a_state_dict() -> None:
    state = {name: torch.zeros(1) for name in ("a", "a.b", "ab", "c.d", "c.e.f", "c.ee")}
    assert list(extract_submodules_state_dict(state, ["a", "c.e"])) == ["a", "a.b", "c.e.f"]
