"""Single files, whole models, and the parts of a checkpoint one by one."""

from __future__ import annotations

import io
import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from accelerate import checkpointing
from accelerate.checkpoint.files import clean_state_dict_for_safetensors, load, save, write_model
from accelerate.errors import CheckpointError, CheckpointNotFoundError


def test_objects_and_tensors_are_saved_and_loaded(tmp_path: Path) -> None:
    save({"a": [1, torch.ones(2)]}, tmp_path / "o.bin")
    assert torch.equal(load(tmp_path / "o.bin")["a"][1], torch.ones(2))
    save({"a": torch.ones(2)}, tmp_path / "t.safetensors", safe_serialization=True)
    assert torch.equal(load_file(tmp_path / "t.safetensors")["a"], torch.ones(2))
    buffer = io.BytesIO()
    save([1], buffer)
    buffer.seek(0)
    assert load(buffer) == [1]
    with pytest.raises(CheckpointError, match="path"):
        save({}, buffer, safe_serialization=True)
    assert {path.name for path in tmp_path.iterdir()} == {"o.bin", "t.safetensors"}


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    save({"a": torch.ones(1)}, tmp_path / "t.safetensors", safe_serialization=True)
    with pytest.raises(CheckpointError):
        save({"a": torch.ones(1, device="meta")}, tmp_path / "t.safetensors", safe_serialization=True)
    assert load_file(tmp_path / "t.safetensors")["a"].item() == 1
    assert [path.name for path in tmp_path.iterdir()] == ["t.safetensors"]


def test_load_unpickles_only_where_it_is_asked_to(tmp_path: Path) -> None:
    torch.save({"array": np.arange(2)}, tmp_path / "a.bin")
    assert load(tmp_path / "a.bin")["array"].tolist() == [0, 1]
    torch.save({"path": Path("x")}, tmp_path / "p.bin")
    with pytest.raises(pickle.UnpicklingError):
        load(tmp_path / "p.bin")
    assert load(tmp_path / "p.bin", weights_only=False)["path"] == Path("x")


def test_clean_tensors_are_what_safetensors_takes(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    state = {"a": base, "same": base.view(6), "part": base[2:4], "turned": torch.arange(6.0).view(2, 3).t()}
    cleaned = clean_state_dict_for_safetensors(state)
    assert set(cleaned) == {"a", "part", "turned"}
    save_file(cleaned, tmp_path / "t.safetensors")
    found = load_file(tmp_path / "t.safetensors")
    assert all(torch.equal(found[name], state[name]) for name in cleaned)


def test_a_model_is_one_file_or_shards_with_an_index(tmp_path: Path) -> None:
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)])
    write_model(model.state_dict(), tmp_path, max_shard_size=400, safe=True)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)] + ["model.safetensors.index.json"]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 3 * 72 * 4
    found = {name: load_file(tmp_path / file)[name] for name, file in index["weight_map"].items()}
    assert all(torch.equal(found[name], t) for name, t in model.state_dict().items())
    # Written again in one piece, nothing of the shards is left to be taken for it.
    write_model(model.state_dict(), tmp_path, max_shard_size="10GB", safe=True)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    write_model(model.state_dict(), tmp_path / "unsafe", max_shard_size="10GB", safe=False)
    model.load_state_dict(torch.load(tmp_path / "unsafe" / "pytorch_model.bin", weights_only=True))


def test_tied_weights_are_written_once_and_found_by_transformers_names(tmp_path: Path) -> None:
    weight = torch.randn(2, 2)
    write_model({"embed": weight, "head": weight}, tmp_path, max_shard_size="1GB", safe=True)
    assert list(load_file(tmp_path / "model.safetensors")) == ["embed"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(CheckpointNotFoundError, match="is a file"):
        write_model({}, tmp_path / "f", max_shard_size=1, safe=True)


class Custom:
    value = 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


@pytest.mark.parametrize("safe", [True, False])
def test_parts_one_by_one(tmp_path: Path, safe: bool) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    scheduler.step()
    checkpointing.save_accelerator_state(
        str(tmp_path), [model.state_dict()], [optimizer], [scheduler], [], 0, 7, safe_serialization=safe
    )
    drawn = (random.random(), torch.rand(1).item())
    other = nn.Linear(2, 2)
    second = torch.optim.AdamW(other.parameters())
    following = torch.optim.lr_scheduler.StepLR(second, 1)
    told = checkpointing.load_accelerator_state(
        str(tmp_path), [other], [second], [following], [], 0, map_location="cpu"
    )
    assert told == {"step": 7}
    assert torch.equal(other.weight, model.weight)
    assert torch.equal(second.state[other.weight]["exp_avg"], optimizer.state[model.weight]["exp_avg"])
    assert following.last_epoch == 1
    assert (random.random(), torch.rand(1).item()) == drawn
    with pytest.raises(CheckpointNotFoundError, match="model_1"):
        checkpointing.load_accelerator_state(str(tmp_path), [other, other], [], [], [], 0)


def test_one_registered_object(tmp_path: Path) -> None:
    custom, other = Custom(), Custom()
    custom.value = 4
    checkpointing.save_custom_state(custom, str(tmp_path), index=2)
    assert torch.load(tmp_path / "custom_checkpoint_2.pkl", weights_only=True) == {"value": 4}
    checkpointing.load_custom_state(other, str(tmp_path), index=2)
    assert other.value == 4
    with pytest.raises(CheckpointNotFoundError):
        checkpointing.load_custom_state(other, str(tmp_path))
