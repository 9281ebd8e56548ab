"""Which strategy is chosen, and by what."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest
import torch

from accelerate import Accelerator
from accelerate.checkpoint.plain import PlainStateAdapter
from accelerate.config.enums import DistributedType
from accelerate.errors import ConfigError
from accelerate.strategies import registry
from accelerate.strategies.base import Strategy
from accelerate.topology import Topology
from accelerate.utils import patch_environment


class Mine(Strategy[None]):
    name = "mine"

    def legacy_type(self, device_type: str) -> DistributedType:
        return DistributedType.NO

    def unwrap(self, model: torch.nn.Module) -> torch.nn.Module:
        return model

    def state(self) -> PlainStateAdapter:
        return PlainStateAdapter(self.unwrap)


def selection(**kwargs: Any) -> registry.Selection:
    kwargs.setdefault("topology", Topology())
    return registry.Selection(device=torch.device("cpu"), **kwargs)


def test_the_world_decides_where_nothing_is_asked() -> None:
    assert registry.choose(selection()).name == "single"
    assert registry.choose(selection(topology=Topology(world_size=2, source="torchrun"))).name == "ddp"


@pytest.mark.parametrize("given", [Mine, Mine(None)], ids=["class", "object"])
def test_given_as_a_class_or_an_object(fresh_state: None, given: Any) -> None:
    assert Accelerator(strategy=given).strategy.name == "mine"


def test_given_by_registered_name(fresh_state: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_table", dict(registry._table))
    registry.register("mine", Mine)
    assert "mine" in registry.names()
    assert Accelerator(strategy="mine").strategy.name == "mine"


def test_named_by_the_launch(fresh_state: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_table", dict(registry._table))
    registry.register("mine", Mine)
    with patch_environment(accelerate_strategy="mine"):
        assert Accelerator().strategy.name == "mine"


def test_found_by_entry_point(fresh_state: None, monkeypatch: pytest.MonkeyPatch) -> None:
    point = metadata.EntryPoint("elsewhere", "test_registry:Mine", registry.ENTRY_POINTS)
    monkeypatch.setattr(metadata.EntryPoint, "load", lambda self: Mine)
    monkeypatch.setattr(
        registry.metadata, "entry_points", lambda group: [point] if group == registry.ENTRY_POINTS else []
    )
    assert "elsewhere" in registry.names()
    assert Accelerator(strategy="elsewhere").strategy.name == "mine"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'ddq'.*ddp, deepspeed"):
        registry.choose(selection(strategy="ddq"))


def test_two_engines_at_once() -> None:
    with pytest.raises(ConfigError, match="deepspeed and fsdp"):
        registry.choose(selection(fsdp=object(), deepspeed=object()))
