"""Models built on the meta device or straight where they belong."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest
import torch
from torch import nn

from accelerate.offload.empty import init_empty_weights, init_on_device
from unit.offload.models import Language, Net


def devices(model: nn.Module) -> tuple[set[str], set[str]]:
    return {p.device.type for p in model.parameters()}, {b.device.type for b in model.buffers()}


def test_parameters_are_empty_and_buffers_real() -> None:
    with init_empty_weights():
        model = Net()
    assert devices(model) == ({"meta"}, {"cpu"})
    assert torch.equal(model.norm.running_var, torch.ones(4))
    assert devices(Net()) == ({"cpu"}, {"cpu"})  # afterwards everything is as before


def test_buffers_too_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with init_empty_weights(include_buffers=True):
        assert devices(Net()) == ({"meta"}, {"meta"})
        assert torch.zeros(1).device.type == "meta"
    monkeypatch.setenv("ACCELERATE_INIT_INCLUDE_BUFFERS", "true")
    with init_empty_weights():
        assert devices(Net()) == ({"meta"}, {"meta"})
    with init_empty_weights(include_buffers=False):
        assert devices(Net()) == ({"meta"}, {"cpu"})


def test_tied_parameters_stay_tied() -> None:
    with init_empty_weights():
        model = Language()
    assert model.head.weight is model.embed.weight


def test_parameter_made_before_it_is_registered_twice_stays_one() -> None:
    with init_empty_weights():
        shared = nn.Parameter(torch.zeros(2))
        one, other = nn.Module(), nn.Module()
        one.weight, other.weight = shared, shared
    assert one.weight is other.weight and one.weight.device.type == "meta"


def test_memory_is_given_back_at_once() -> None:
    with init_empty_weights():
        module = nn.Module()
        weight = nn.Parameter(torch.zeros(2))
        gone = weakref.ref(weight)
        module.weight = weight
        del weight
        gc.collect()
        assert gone() is None


def test_settings_of_parameters_are_kept() -> None:
    class Special(nn.Parameter):
        pass

    with init_empty_weights():
        module = nn.Module()
        module.frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
        marked = nn.Parameter(torch.zeros(2))
        marked.mark = 1  # type: ignore[attr-defined]
        module.marked = marked
        module.special = Special(torch.zeros(2))
    assert not module.frozen.requires_grad
    assert module.marked.mark == 1
    assert type(module.special) is Special and module.special.device.type == "meta"


def test_the_patch_goes_when_construction_fails() -> None:
    before = (nn.Module.register_parameter, nn.Module.register_buffer)
    with pytest.raises(ZeroDivisionError):
        with init_empty_weights(include_buffers=True):
            raise ZeroDivisionError
    assert (nn.Module.register_parameter, nn.Module.register_buffer) == before
    assert torch.zeros(1).device.type == "cpu"


def test_on_a_device() -> None:
    with init_on_device(torch.device("meta"), include_buffers=False):
        assert devices(Net()) == ({"meta"}, {"cpu"})
    with init_on_device(torch.device("cpu")):
        model = Net()
    assert devices(model) == ({"cpu"}, {"cpu"})
    assert model.first.weight.abs().sum() > 0


def test_empty_models_do_not_wake_the_compiler() -> None:
    code = (
        "import sys, torch\n"
        "from accelerate.offload.empty import init_empty_weights\n"
        "with init_empty_weights():\n"
        "    layer = torch.nn.TransformerEncoderLayer(8, 2)\n"
        "    torch.nn.Embedding(4, 4)\n"
        "    for init in (torch.nn.init.kaiming_normal_, torch.nn.init.trunc_normal_, torch.nn.init.xavier_normal_):\n"
        "        assert init(layer.linear1.weight) is layer.linear1.weight\n"
        "real = torch.nn.init.normal_(torch.zeros(64))\n"
        "print('torch._dynamo' in sys.modules, bool(real.abs().sum() > 0))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_real_tensors_are_filled_within_too() -> None:
    with init_empty_weights():
        assert torch.nn.init.normal_(torch.zeros(64)).abs().sum() > 0
