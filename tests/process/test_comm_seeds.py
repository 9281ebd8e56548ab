"""Seeds and batch sizes over several processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from accelerate import Accelerator
from accelerate.comm.retry import find_executable_batch_size
from accelerate.comm.rng import synchronize_rng_state, synchronize_rng_states
from accelerate.devices.rng import diverge, restore_rng_states, rng_states, set_seed
from accelerate.state import PartialState
from accelerate.test_utils.world import run_world


def test_same_weights_and_order_but_other_dropout() -> None:
    def train(rank: int, n: int) -> tuple[list[float], list[int], list[list[bool]], list[list[bool]]]:
        PartialState()
        set_seed(42)
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        order = torch.randperm(20, generator=torch.Generator().manual_seed(1)).tolist()
        weights = model[0].weight.flatten().tolist()
        model = DistributedDataParallel(model)
        diverge(rank)
        states = rng_states()
        dropout = nn.Dropout(0.5)
        masks = [(dropout(torch.ones(64)) > 0).tolist() for _ in range(2)]
        restore_rng_states(states)
        again = [(dropout(torch.ones(64)) > 0).tolist() for _ in range(2)]
        return weights, order, masks, again

    found = run_world(train, 4, "fork")
    assert all(weights == found[0][0] and order == found[0][1] for weights, order, _, _ in found)
    assert len({str(masks) for _, _, masks, _ in found}) == 4
    assert all(masks == again for _, _, masks, again in found)


def test_generators_are_brought_in_step() -> None:
    def step(rank: int, n: int) -> tuple[float, float, float]:
        PartialState()
        torch.manual_seed(rank)
        generator = torch.Generator().manual_seed(rank)
        with pytest.raises(ValueError, match="needs the generator"):
            synchronize_rng_state("generator")
        with pytest.raises(ValueError, match="nonsense"):
            synchronize_rng_state("nonsense")
        synchronize_rng_states(["torch", "generator"], generator)
        synchronize_rng_state()
        return torch.rand(1).item(), torch.rand(1, generator=generator).item(), torch.rand(1).item()

    found = run_world(step, 3, "fork")
    assert found == [found[0]] * 3


def test_one_rank_without_memory_makes_all_try_smaller() -> None:
    def train(rank: int, n: int) -> tuple[Any, list[int]]:
        PartialState()
        tried: list[int] = []

        @find_executable_batch_size(starting_batch_size=8, reduce_batch_size_fn=lambda: tried[-1] // 2)
        def loop(batch_size: int, name: str) -> tuple[int, str]:
            tried.append(batch_size)
            if rank == 1 and batch_size > 2:
                raise RuntimeError("CUDA out of memory.")
            return batch_size, name

        return loop("x"), tried

    assert run_world(train, 2, "fork") == [((2, "x"), [8, 4, 2])] * 2


def test_an_accelerators_ranks_part_when_the_model_is_prepared() -> None:
    def train(rank: int, n: int) -> tuple[list[float], list[int], list[bool]]:
        set_seed(42)
        accelerator = Accelerator(cpu=True)
        data = TensorDataset(torch.arange(16.0).view(16, 1))
        model = nn.Sequential(nn.Linear(1, 64), nn.Dropout(0.5))
        weights = model[0].weight.flatten().tolist()
        model, loader = accelerator.prepare(model, DataLoader(data, batch_size=2, shuffle=True))
        seen = [int(x) for (batch,) in loader for x in accelerator.gather(batch).flatten()]
        return weights, seen, (model(torch.ones(1, 1)) == 0).flatten().tolist()

    first, second = run_world(train, 2, "fork")
    assert first[0] == second[0] and first[1] == second[1]
    assert sorted(first[1]) == list(range(16)) and first[1] != sorted(first[1])
    assert first[2] != second[2] and 10 < sum(first[2]) < 54
