"""Seeds: everything alike, ranks that part, states that come back."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from accelerate import runtime
from accelerate.devices import rng
from accelerate.topology import Topology


@pytest.fixture(autouse=True)
def own_slots() -> Iterator[None]:
    with runtime.isolated():
        yield


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), torch.rand(1).item()


def test_a_seed_repeats_everything() -> None:
    rng.set_seed(42)
    first = drawn()
    rng.set_seed(42)
    assert drawn() == first
    rng.set_seed(43)
    assert all(a != b for a, b in zip(drawn(), first, strict=True))


def test_large_and_negative_seeds() -> None:
    rng.set_seed(2**40 + 1)
    rng.set_seed(-1)


def test_a_seed_of_each_ranks_own() -> None:
    rng.set_seed(3)
    wanted = drawn()
    with runtime.isolated(Topology(rank=2, world_size=4)):
        rng.set_seed(1, device_specific=True)
        assert drawn() == wanted
        assert not rng.diverge(2)


def test_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", asked.append)  # the real one imports the compiler
    rng.set_seed(1)
    assert asked == []
    rng.set_seed(1, deterministic=True)
    assert asked == [True]


def test_ranks_part_once_and_repeatably() -> None:
    def after(seed: int, rank: int) -> tuple[float, float, float]:
        rng.set_seed(seed)
        assert rng.diverge(rank)
        assert not rng.diverge(rank)
        return drawn()

    assert after(1, 1) == after(1, 1)
    masks = {after(seed, rank)[2] for seed in (1, 2, 3) for rank in range(4)}
    assert len(masks) == 12
    assert after(1, 0)[:2] == after(1, 3)[:2]  # what data order may depend on stays alike


def test_rank_zero_goes_on_as_one_process_does() -> None:
    rng.set_seed(5)
    wanted = torch.rand(3)
    rng.set_seed(5)
    rng.diverge(0)
    assert torch.equal(torch.rand(3), wanted)


def test_without_a_seed_nothing_is_touched() -> None:
    torch.manual_seed(7)
    wanted = torch.rand(1)
    torch.manual_seed(7)
    assert not rng.diverge(1)
    assert torch.equal(torch.rand(1), wanted)


def test_states_come_back() -> None:
    rng.set_seed(1)
    rng.diverge(1)
    random.gauss(0, 1)
    np.random.randn()
    states = rng.rng_states()
    wanted = (*drawn(), random.gauss(0, 1), float(np.random.randn()))
    rng.set_seed(2)
    assert rng.restore_rng_states(states) == []
    assert (*drawn(), random.gauss(0, 1), float(np.random.randn())) == wanted
    assert not rng.diverge(1)  # a resumed rank has parted already


def plain(value: Any) -> Any:
    """As a file of JSON would give it back."""
    return value.tolist() if isinstance(value, torch.Tensor) else value


def test_states_survive_json_and_need_no_pickle() -> None:
    rng.set_seed(1)
    states = rng.rng_states()
    torch_state = states.pop("torch")
    assert isinstance(torch_state, torch.Tensor)
    wanted = drawn()
    text = json.dumps(states, default=plain)
    assert rng.restore_rng_states({**json.loads(text), "torch": torch_state}) == []
    assert drawn() == wanted


def test_what_is_missing_is_named() -> None:
    states = rng.rng_states()
    del states["numpy"]
    states["devices"]["npu"] = [torch.zeros(1)]
    assert rng.restore_rng_states(states) == ["numpy", "npu"]
