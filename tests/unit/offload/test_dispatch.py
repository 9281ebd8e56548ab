"""Models over devices, memory and disk give the outputs of the plain model.

Several accelerators are stood in for by torch's fake tensors, which have devices but no data: every operation checks
that its tensors are on one device.
"""

from __future__ import annotations

import copy
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from accelerate.offload.dispatch import cpu_offload, disk_offload, dispatch_model
from accelerate.offload.empty import init_empty_weights
from accelerate.offload.hooks import remove_hook_from_submodules
from unit.offload.models import Language, Net, language, net

IDS = torch.arange(6).reshape(2, 3)
X = torch.linspace(-1, 1, 6).reshape(2, 3)
MIXED = dict.fromkeys(("shift", "embed", "blocks.1", "head"), "cpu") | dict.fromkeys(
    ("blocks.0", "blocks.2", "blocks.3"), "disk"
)


def where(model: nn.Module) -> dict[str, str]:
    return {name: str(p.device) for name, p in model.named_parameters(remove_duplicate=False)}


@pytest.fixture
def accelerators() -> Iterator[None]:
    with FakeTensorMode(), torch.no_grad():
        yield


def test_cpu_offload_computes_the_same() -> None:
    model = language()
    expected = model(IDS)
    assert cpu_offload(model, torch.device("cpu")) is model
    assert set(where(model).values()) == {"meta"}
    found = model(IDS)
    assert torch.equal(found["logits"], expected["logits"]) and torch.equal(found["last"], expected["last"])
    remove_hook_from_submodules(model)
    assert set(where(model).values()) == {"cpu"} and torch.equal(model(IDS)["logits"], expected["logits"])
    assert model.embed.weight.data_ptr() == model.head.weight.data_ptr()


def test_cpu_offload_of_given_weights_and_buffers() -> None:
    model, source = net(0), net(1)
    expected = source(X)
    cpu_offload(model, offload_buffers=True, state_dict=source.state_dict())
    assert {b.device.type for b in model.buffers()} == {"meta"}
    assert torch.equal(model(X), expected)


def test_disk_offload_computes_the_same(tmp_path: Path) -> None:
    model = language()
    expected = model(IDS)["logits"]
    disk_offload(model, tmp_path / "weights")
    assert set(where(model).values()) == {"meta"}
    assert torch.equal(model(IDS)["logits"], expected)
    index = json.loads((tmp_path / "weights" / "index.json").read_text())
    assert set(index) == set(language().state_dict())


def test_stale_folder_is_not_taken_for_the_model(tmp_path: Path) -> None:
    disk_offload(net(1), tmp_path)
    model = net(0)
    expected = model(X)
    assert torch.equal(disk_offload(model, tmp_path)(X), expected)


def test_empty_model_takes_what_the_folder_has(tmp_path: Path) -> None:
    source = net(1)
    expected = source(X)
    disk_offload(source, tmp_path, offload_buffers=True)
    with init_empty_weights(include_buffers=True):
        model = Net().eval()
    assert torch.equal(disk_offload(model, tmp_path, torch.device("cpu"), offload_buffers=True)(X), expected)
    with init_empty_weights():
        other = Language()
    with pytest.raises(ValueError, match=r"index.json' does not list them either: shift, embed\.weight"):
        disk_offload(other, tmp_path)


def test_one_device_moves_and_hooks_nothing() -> None:
    model = net()
    assert dispatch_model(model, {"": "cpu"}) is model
    assert model.hf_device_map == {"": "cpu"}
    assert not any(hasattr(module, "_hf_hook") for module in model.modules())
    with init_empty_weights():
        empty = Net()
    with pytest.raises(ValueError, match=r"hold no data.*first\.weight"):
        dispatch_model(empty, {"": "cpu"})


def test_memory_and_disk(tmp_path: Path) -> None:
    model = language()
    expected = model(IDS, extra=torch.ones(10))
    dispatch_model(model, MIXED, offload_dir=tmp_path)
    assert {name: place for name, place in where(model).items() if place == "meta"}.keys() == {
        f"blocks.{i}.{layer}.weight" for i in (0, 2, 3) for layer in ("up", "down")
    }
    found = model(IDS, extra=torch.ones(10))
    assert torch.equal(found["logits"], expected["logits"])
    assert model.head.weight is model.embed.weight
    assert not (tmp_path / "embed.weight.dat").exists()


def test_disk_needs_a_folder() -> None:
    with pytest.raises(ValueError, match="no folder for them: last"):
        dispatch_model(net(), {"first": "cpu", "norm": "cpu", "last": "disk"})


def test_whole_model_on_disk(tmp_path: Path) -> None:
    model = net()
    expected = model(X)
    dispatch_model(model, {"": "disk"}, offload_dir=tmp_path)
    assert set(where(model).values()) == {"meta"}
    assert torch.equal(model(X), expected)


def test_weights_for_disk_may_be_listed(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    source = net(1)
    save_file(source.state_dict(), tmp_path / "m.safetensors")
    index = {
        name: {"safetensors_file": str(tmp_path / "m.safetensors"), "weight_name": name}
        for name in ("last.weight", "last.bias")
    }
    model = net(1)
    dispatch_model(model, {"first": "cpu", "norm": "cpu", "last": "disk"}, offload_index=index)
    assert torch.equal(model(X), source(X))


def test_forced_hooks_on_one_device() -> None:
    model = net()
    expected = model(X)
    dispatch_model(model, {"": "cpu"}, force_hooks=True)
    assert model._hf_hook.io_same_device  # type: ignore[union-attr]
    assert torch.equal(model(X), expected)


def test_dispatched_model_is_not_moved_by_hand(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = dispatch_model(net(), {"first": "cpu", "norm": "cpu", "last": "disk"}, offload_dir=tmp_path)
    with pytest.raises(RuntimeError, match=r"`to\(\)` was called on a model of which parts wait"):
        model.to("cpu")
    with pytest.raises(RuntimeError, match=r"`cuda\(\)`"):
        model.cuda()
    remove_hook_from_submodules(model)
    assert "to" not in vars(model) and "cuda" not in vars(model)
    placed = dispatch_model(net(), {"": "cpu"}, force_hooks=True)
    with caplog.at_level(logging.WARNING):
        placed.to(torch.float64)
    assert "placed by hooks" in caplog.text and placed.first.weight.dtype is torch.float64


def test_uncovered_parameters_are_named() -> None:
    with pytest.raises(ValueError, match=r"no device for these parameters: last\.weight, last\.bias"):
        dispatch_model(net(), {"first": "cpu", "norm": "cpu"})


def test_check_is_looked_up_where_libraries_replace_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    module = ModuleType("accelerate.big_modeling")
    module.check_device_map = lambda model, device_map: seen.append(device_map)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "accelerate.big_modeling", module)
    dispatch_model(net(), {"first": "cpu"})
    assert seen == [{"first": "cpu"}]


def test_copy_of_a_dispatched_model_is_its_own(tmp_path: Path) -> None:
    model = dispatch_model(net(), {"first": "cpu", "norm": "cpu", "last": "disk"}, offload_dir=tmp_path)
    expected = model(X)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        model.first.weight.zero_()
    assert torch.equal(twin(X), expected) and not torch.equal(model(X), expected)
    with pytest.raises(RuntimeError, match="parts wait"):
        twin.to("cpu")


@pytest.mark.usefixtures("accelerators")
class TestSeveralAccelerators:
    """With devices that are not here."""

    def test_parts_are_placed_and_inputs_follow(self) -> None:
        model = dispatch_model(Net().eval(), {"first": "cuda:0", "norm": "cuda:1", "last": "cpu"})
        assert where(model) == {
            "first.weight": "cuda:0",
            "first.bias": "cuda:0",
            "norm.weight": "cuda:1",
            "norm.bias": "cuda:1",
            "last.weight": "meta",
            "last.bias": "meta",
        }
        assert {str(b.device) for b in model.buffers()} == {"cuda:1"}
        for device in ("cpu", "cuda:1"):
            assert str(model(torch.ones(2, 3, device=device)).device) == device
        assert where(model)["last.weight"] == "meta"

    def test_offloaded_parts_run_on_the_main_device(self) -> None:
        model = dispatch_model(Net().eval(), {"first": "cuda:0", "norm": "cuda:1", "last": "cpu"})
        assert model.last._hf_hook.execution_device == "cuda:0"  # type: ignore[union-attr]
        model = dispatch_model(
            Net().eval(), {"first": "cuda:0", "norm": "cuda:1", "last": "cpu"}, main_device=torch.device("cuda:1")
        )
        assert str(model.last._hf_hook.execution_device) == "cuda:1"  # type: ignore[union-attr]
        model(torch.ones(2, 3))

    @pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
    def test_split_model_with_own_tensors_and_ties(self) -> None:
        device_map: dict[str, Any] = {
            "shift": "cuda:0",
            "embed": "cuda:0",
            "blocks.0": "cuda:0",
            "blocks.1": "cuda:1",
            "blocks.2": "cpu",
            "blocks.3.up": "cuda:1",
            "blocks.3.down": "cpu",
            "head": "cuda:0",
        }
        model = dispatch_model(Language().eval(), device_map)
        assert str(model.scale.device) == "cuda:0"  # named by no map: where the model's own tensors are used
        found = model(torch.zeros(2, 3, dtype=torch.long), extra=torch.ones(10, device="cuda:1"))
        assert {name: str(value.device) for name, value in found.items()} == {"logits": "cpu", "last": "cpu"}
        assert model.head.weight is model.embed.weight

    @pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
    def test_ties_over_two_devices_are_two_tensors(self) -> None:
        device_map = {"shift": "cuda:0", "embed": "cuda:0", "blocks": "cuda:0", "head": "cuda:1"}
        model = dispatch_model(Language().eval(), device_map)
        assert where(model)["embed.weight"] == "cuda:0" and where(model)["head.weight"] == "cuda:1"
        model(torch.zeros(2, 3, dtype=torch.long))

    def test_entries_inside_of_others_win(self) -> None:
        model = dispatch_model(Net().eval(), {"": "cuda:0", "last": "cuda:1", "norm.weight": "cuda:0"})
        assert where(model)["first.weight"] == where(model)["norm.bias"] == "cuda:0"
        assert where(model)["last.weight"] == "cuda:1"
        assert model.hf_device_map == {"": "cuda:0", "last": "cuda:1", "norm.weight": "cuda:0"}
        model(torch.ones(2, 3))

    def test_skipped_keys_stay_where_they_are(self) -> None:
        class Cached(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(2, 2)
                self.other = nn.Linear(2, 2)

            def forward(self, x: torch.Tensor, cache: torch.Tensor) -> dict[str, torch.Tensor]:
                return {"out": self.other(self.layer(x)), "cache": cache}

        model = dispatch_model(Cached(), {"layer": "cuda:0", "other": "cuda:1"}, skip_keys="cache")
        found = model(torch.ones(1, 2), cache=torch.ones(1, device="cuda:1"))
        assert {name: str(value.device) for name, value in found.items()} == {"out": "cpu", "cache": "cuda:1"}
