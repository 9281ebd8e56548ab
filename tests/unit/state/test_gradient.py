"""Whether gradients are synchronised, and which loader is active."""

from __future__ import annotations

from typing import Any

import pytest

from accelerate.errors import NotSetUpError
from accelerate.state import GradientState

pytestmark = pytest.mark.usefixtures("fresh_state")


class Loader:
    def __init__(self, end: bool = False, remainder: int = -1) -> None:
        self.end_of_dataloader = end
        self.remainder = remainder


class Plugin:
    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def to_kwargs(self) -> dict[str, Any]:
        return self.settings


def test_the_beginning() -> None:
    held = GradientState()
    assert held.initialized and held.sync_gradients
    assert held.num_steps == 1 and not held.adjust_scheduler and held.sync_with_dataloader
    assert held.plugin_kwargs == {} and not held.is_xla_gradients_synced
    assert held.dataloader_references == [None] and held.active_dataloader is None
    assert not held.in_dataloader and not held.end_of_dataloader and held.remainder == -1


def test_settings_of_the_last_plugin_hold() -> None:
    GradientState(Plugin(num_steps=4, sync_with_dataloader=False))
    held = GradientState()
    assert held.num_steps == 4 and not held.sync_with_dataloader
    GradientState(Plugin(num_steps=2, adjust_scheduler=True, sync_each_batch=True))
    assert held.num_steps == 2 and held.adjust_scheduler and held.sync_with_dataloader
    assert held.plugin_kwargs["sync_each_batch"] is True


def test_assigned_and_set_in_every_instance() -> None:
    first, second = GradientState(), GradientState()
    first._set_sync_gradients(False)
    assert second.sync_gradients is False
    second.sync_gradients = True
    assert first.sync_gradients is True
    first.is_xla_gradients_synced = True
    assert second.is_xla_gradients_synced
    first._set_sync_gradients(True)
    assert not second.is_xla_gradients_synced


def test_loaders_nest() -> None:
    held, train, evaluate = GradientState(), Loader(end=True, remainder=3), Loader()
    held._add_dataloader(train)
    assert held.in_dataloader and held.end_of_dataloader and held.remainder == 3
    held._add_dataloader(evaluate)
    assert held.active_dataloader is evaluate and not held.end_of_dataloader and held.remainder == -1
    assert held.dataloader_references == [None, train, evaluate]
    held._remove_dataloader(evaluate)
    assert held.active_dataloader is train
    held._remove_dataloader(evaluate)
    held._remove_dataloader(train)
    assert not held.in_dataloader and held.dataloader_references == [None]


def test_a_loader_that_is_iterated_again_counts_once() -> None:
    held, train = GradientState(), Loader()
    held._add_dataloader(train)
    held._add_dataloader(train)
    held._remove_dataloader(train)
    assert held.active_dataloader is None


def test_a_loader_that_is_gone_is_not_active() -> None:
    """What a loop that was left by ``break`` leaves, once its loader is let go."""
    held, train = GradientState(), Loader()
    held._add_dataloader(train)
    held._add_dataloader(Loader(end=True))
    assert held.active_dataloader is train and not held.end_of_dataloader


def test_reset() -> None:
    held = GradientState()
    GradientState._reset_state()
    assert not held.initialized and repr(held) == "GradientState(not set up)"
    with pytest.raises(NotSetUpError, match="sync_gradients"):
        _ = held.sync_gradients
    assert getattr(held, "nonsense", 1) == 1
    GradientState()
    assert held.sync_gradients
    assert "sync_gradients=True" in repr(held)
