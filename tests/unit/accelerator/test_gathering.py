"""Metrics in one process: nothing is repeated, and what stands for a full batch is cut to what the last one has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from accelerate import Accelerator
from accelerate.test_utils.world import run_world


@pytest.mark.parametrize(
    ("rows", "drop_last", "sizes"),
    [(7, False, [3, 3, 1]), (6, False, [3, 3]), (7, True, [3, 3]), (2, False, [2])],
)
def test_a_mean_repeated_for_a_full_batch_counts_what_the_last_has(
    fresh_state: None, rows: int, drop_last: bool, sizes: list[int]
) -> None:
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(TensorDataset(torch.arange(rows)), batch_size=3, drop_last=drop_last))
    found: list[int] = []
    for (batch,) in loader:
        assert torch.equal(accelerator.gather_for_metrics(batch), batch)
        words = torch.ones(5 * len(batch))
        assert torch.equal(accelerator.gather_for_metrics(words), words)
        assert accelerator.gather_for_metrics(["a"] * 4) == ["a"] * 4
        assert accelerator.gather_for_metrics(torch.tensor(1.0)).numel() == 1
        data: Any = accelerator.gather_for_metrics({"loss": batch.float().mean().repeat(3)})
        names = accelerator.gather_for_metrics(["mean"] * 3)
        assert len(data["loss"]) == len(names)
        found.append(len(names))
    assert found == sizes


def test_outside_a_loader_nothing_is_cut(fresh_state: None) -> None:
    accelerator = Accelerator()
    for _ in accelerator.prepare(DataLoader(TensorDataset(torch.arange(7)), batch_size=3)):
        pass
    assert len(accelerator.gather_for_metrics(torch.ones(3))) == 3


def test_a_tensor_gathered_as_an_object_is_its_rows() -> None:
    def rank_main(rank: int, n: int) -> list[list[float]]:
        accelerator = Accelerator()
        loader = accelerator.prepare(DataLoader(TensorDataset(torch.arange(5.0)[:, None]), batch_size=2))
        found = [accelerator.gather_for_metrics(batch, use_gather_object=True) for (batch,) in loader]
        return [[row.item() for row in rows] for rows in found]

    assert run_world(rank_main, 1, how="fork") == [[[0, 1], [2, 3], [4]]]
    assert run_world(rank_main, 2, how="fork") == [[[0, 1, 2, 3], [4]]] * 2
