"""Checkpoints of every shape into models of every place."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from accelerate.errors import CheckpointError, CheckpointMismatchError, NotBuiltError
from accelerate.offload import load
from accelerate.offload.disk import OffloadedWeightsLoader, offload_state_dict
from accelerate.offload.empty import init_empty_weights
from accelerate.offload.load import (
    load_checkpoint_and_dispatch,
    load_checkpoint_in_model,
    load_offloaded_weights,
    load_state_dict,
)
from unit.offload.models import Language, Net, language, net

X = torch.linspace(-1, 1, 6).reshape(2, 3)
IDS = torch.arange(6).reshape(2, 3)


def empty(kind: type[nn.Module] = Net) -> Any:
    with init_empty_weights():
        return kind().eval()


def split(folder: Path, state: dict[str, torch.Tensor], safe: bool = True) -> Path:
    """Two shards and their index."""
    stem, kind = ("model", "safetensors") if safe else ("pytorch_model", "bin")
    names, weight_map = list(state), {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"{stem}-0000{number}-of-00002.{kind}"
        tensors = {name: state[name].contiguous() for name in part}
        save_file(tensors, folder / file) if safe else torch.save(tensors, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = folder / f"{stem}.{kind}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save_file(net(1).state_dict(), tmp_path / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("form", ["file", "folder", "index", "folder with index", "only file"])
def test_every_form_of_a_checkpoint(tmp_path: Path, form: str, safe: bool) -> None:
    state = net(1).state_dict()
    kind = "safetensors" if safe else "bin"
    where: Path = tmp_path
    if "index" in form:
        index = split(tmp_path, state, safe)
        where = index if form == "index" else tmp_path
    else:
        name = f"weights.{kind}" if form == "only file" else f"model.{kind}" if safe else "pytorch_model.bin"
        save_file(state, tmp_path / name) if safe else torch.save(state, tmp_path / name)
        where = tmp_path / name if form == "file" else tmp_path
    for model in (net(0), empty()):
        load_checkpoint_in_model(model, str(where), strict=True)
        assert torch.equal(model(X), net(1)(X))


def test_loaded_tensors_outlive_their_file(checkpoint: Path) -> None:
    model = empty()
    load_checkpoint_in_model(model, checkpoint)
    file = checkpoint / "model.safetensors"
    with file.open("r+b") as handle:
        handle.seek(file.stat().st_size - 400)
        handle.write(bytes(400))
    assert torch.equal(model(X), net(1)(X))


def test_what_cannot_be_a_checkpoint_is_listed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a file nor a folder"):
        load_checkpoint_in_model(net(), tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ValueError, match=r"has none of model\.safetensors.*It has: notes\.txt"):
        load_checkpoint_in_model(net(), tmp_path)
    torch.save({"state": net().state_dict()}, tmp_path / "odd.bin")
    with pytest.raises(CheckpointError, match="does not hold a state dict"):
        load_checkpoint_in_model(net(), tmp_path / "odd.bin")


def test_nothing_but_tensors_is_unpickled(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(1), "code": print}, tmp_path / "pytorch_model.bin")
    with pytest.raises(Exception, match="weights_only|Weights only"):
        load_checkpoint_in_model(net(), tmp_path)


def test_missing_and_unexpected_names_are_listed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = net(1).state_dict()
    del state["last.bias"]
    save_file(state | {"extra.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    listed = r"Missing in the checkpoint: last\.bias\. Not in the model: extra\.weight\."
    with pytest.raises(CheckpointMismatchError, match=listed):
        load_checkpoint_and_dispatch(net(), tmp_path)
    with pytest.raises(CheckpointMismatchError, match=listed):
        load_checkpoint_in_model(net(), tmp_path, strict=True)
    model = net(0)
    with caplog.at_level(logging.WARNING):
        load_checkpoint_and_dispatch(model, tmp_path, strict=False)
    assert "Missing in the checkpoint: last.bias" in caplog.text
    assert torch.equal(model.last.weight, state["last.weight"]) and torch.equal(model.last.bias, net(0).last.bias)


def test_tied_names_and_unsaved_buffers_are_no_surprise(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = language(1).state_dict()
    del state["head.weight"]
    save_file(state | {"scale": torch.zeros(10)}, tmp_path / "model.safetensors")
    model = empty(Language)
    with caplog.at_level(logging.WARNING):
        load_checkpoint_in_model(model, tmp_path, strict=True)
    assert caplog.text == ""
    assert model.head.weight is model.embed.weight
    assert torch.equal(model(IDS)["logits"], language(1)(IDS)["logits"])


def test_other_shape_is_an_error(tmp_path: Path) -> None:
    save_file(net().state_dict() | {"last.bias": torch.zeros(6)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"'last\.bias' has shape \(5,\) in the model and \(6,\)"):
        load_checkpoint_in_model(net(), tmp_path)


def test_dtype_and_modules_kept_in_float32(checkpoint: Path) -> None:
    model = empty()
    load_checkpoint_in_model(model, checkpoint, dtype="bfloat16", keep_in_fp32_modules=["last"])
    assert model.first.weight.dtype is torch.bfloat16 and model.last.weight.dtype is torch.float32
    assert model.norm.num_batches_tracked.dtype is torch.int64
    half = empty().half()
    load_checkpoint_in_model(half, checkpoint)
    assert half.first.weight.dtype is torch.float16


def test_devices_by_map(checkpoint: Path) -> None:
    model = net(0)
    load_checkpoint_in_model(model, checkpoint, device_map={"first": "cpu", "norm": "cpu", "last": "meta"})
    assert model.last.weight.device.type == "meta" and torch.equal(model.first.weight, net(1).first.weight)
    with pytest.raises(ValueError, match="no device for these parameters: last"):
        load_checkpoint_in_model(net(0), checkpoint, device_map={"first": "cpu", "norm": "cpu"})


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_disk_by_map(tmp_path: Path, safe: bool, dtype: torch.dtype | None) -> None:
    split(tmp_path, net(1).state_dict(), safe)
    folder, model = tmp_path / "offload", empty()
    folder.mkdir()
    device_map = {"first": "cpu", "norm": "disk", "last": "disk"}
    with pytest.raises(ValueError, match="no folder for them"):
        load_checkpoint_in_model(model, tmp_path, device_map=device_map)
    load_checkpoint_in_model(model, tmp_path, device_map=device_map, offload_folder=folder, dtype=dtype, strict=True)
    assert model.last.weight.device.type == "meta" and model.norm.running_mean.device.type == "cpu"
    weights = OffloadedWeightsLoader(save_folder=folder)
    assert sorted(weights) == ["last.bias", "last.weight", "norm.bias", "norm.weight"]
    assert torch.equal(weights["last.weight"], net(1).last.weight.to(dtype or torch.float32))
    assert list(folder.glob("*.dat")) == [] if safe else len(list(folder.glob("*.dat"))) == 4


@pytest.mark.parametrize("safe", [True, False])
def test_load_and_dispatch_over_memory_and_disk(tmp_path: Path, safe: bool) -> None:
    split(tmp_path, language(1).state_dict(), safe)
    (tmp_path / "offload").mkdir()
    model = load_checkpoint_and_dispatch(
        empty(Language),
        tmp_path,
        device_map={"shift": "cpu", "embed": "cpu", "blocks.0": "cpu", "blocks": "disk", "head": "cpu"},
        offload_folder=tmp_path / "offload",
    )
    assert {name for name, p in model.named_parameters() if p.device.type == "meta"} == {
        f"blocks.{i}.{layer}.weight" for i in (1, 2, 3) for layer in ("up", "down")
    }
    assert torch.equal(model(IDS)["logits"], language(1)(IDS)["logits"])


@pytest.mark.parametrize("kind", ["auto", "balanced", "balanced_low_0", "sequential"])
def test_planned_maps(tmp_path: Path, kind: str) -> None:
    save_file(net(1).state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "offload").mkdir()
    model: Any = load_checkpoint_and_dispatch(
        empty(), tmp_path, device_map=kind, max_memory={"cpu": 210}, offload_folder=tmp_path / "offload"
    )
    assert model.hf_device_map == {"first": "cpu", "norm": "disk", "last": "disk"}
    assert torch.equal(model(X), net(1)(X))


def test_planning_respects_what_the_model_says_must_stay_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(load, "infer_auto_device_map", lambda *args, **kwargs: seen.append(args) or {"": "cpu"})
    save_file(net(1).state_dict(), tmp_path / "model.safetensors")
    model = empty()
    model._no_split_modules = ["Linear"]
    load_checkpoint_and_dispatch(model, tmp_path, device_map="auto", max_memory={"cpu": 10**6})
    assert seen[0][2] == ["Linear"]
    load_checkpoint_and_dispatch(
        model, tmp_path, device_map="auto", max_memory={"cpu": 10**6}, no_split_module_classes=["Net"]
    )
    assert seen[1][2] == ["Net"]
    with pytest.raises(ValueError, match="device_map='magic' is not known"):
        load_checkpoint_and_dispatch(model, tmp_path, device_map="magic")


def test_without_a_map_nothing_is_hooked(checkpoint: Path) -> None:
    model = load_checkpoint_and_dispatch(empty(), checkpoint)
    assert not any(hasattr(module, "_hf_hook") for module in model.modules())
    assert torch.equal(model(X), net(1)(X))


def test_quantised_offload_says_it_is_not_built(checkpoint: Path) -> None:
    with pytest.raises(NotBuiltError, match="quantised loading"):
        load_checkpoint_in_model(net(), checkpoint, offload_8bit_bnb=True)


@pytest.mark.parametrize("safe", [True, False])
def test_state_dict_of_a_file(tmp_path: Path, safe: bool) -> None:
    state = net(1).state_dict()
    file = tmp_path / ("a.safetensors" if safe else "a.bin")
    save_file(state, file) if safe else torch.save(state, file)
    loaded = load_state_dict(file)
    assert {name: torch.equal(loaded[name], value) for name, value in state.items()} == dict.fromkeys(state, True)
    placed = load_state_dict(file, device_map={"first": "meta", "norm": "disk", "last": "cpu"})
    assert placed["first.weight"].device.type == "meta" and placed["norm.bias"].device.type == "cpu"


def test_offloaded_weights_come_back_into_the_model(tmp_path: Path) -> None:
    source = net(1)
    offload_state_dict(tmp_path, source.state_dict())
    index = json.loads((tmp_path / "index.json").read_text())
    model = empty()
    load_offloaded_weights(model, index, tmp_path)
    assert torch.equal(model(X), source(X))
    load_offloaded_weights(model, None, tmp_path)
