"""A job that was stopped in the middle of an epoch goes on, by the checkpoints of an Accelerator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from accelerate import Accelerator
from accelerate.test_utils.world import run_world
from accelerate.utils import DataLoaderConfiguration, set_seed
from loaders import Numbers

EPOCHS, SAMPLES = 3, 22


class Noisy(Numbers):
    """A number, and noise from torch's global state."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index), torch.rand(()).item()])


def job(folder: str, stop: int | None, resume: bool, **how: Any) -> Any:
    """Trains, from the last checkpoint where there is one, and writes down what it saw and its losses by step."""

    def each(rank: int, n: int) -> list[Any]:
        set_seed(11 if not resume else 12)
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**how))
        model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        loader = DataLoader(Noisy(SAMPLES), batch_size=2, shuffle=True)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        if resume:
            accelerator.load_state(folder)
        seen: list[Any] = []
        for epoch in range(loader.iteration, EPOCHS):
            for batch in loader:
                loss = model(batch).square().mean()
                optimizer.zero_grad()
                accelerator.backward(loss)
                optimizer.step()
                numbers = [int(number) for number in batch[:, 0]]
                seen.append((epoch, numbers, loss.item(), loader.end_of_dataloader))
                if stop is not None and len(seen) == stop:
                    accelerator.save_state(folder)
                    return seen
        return seen

    return each


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("how", [{}, {"dispatch_batches": True}, {"use_stateful_dataloader": True}], ids=str)
def test_a_stopped_job_sees_and_computes_what_it_would_have(ranks: int, how: dict[str, bool], tmp_path: Path) -> None:
    whole = run_world(job(str(tmp_path), None, False, **how), ranks, "fork")
    steps = len(whole[0]) // EPOCHS
    for stop in (3, steps, steps + 4):
        folder = str(tmp_path / str(stop))
        first = run_world(job(folder, stop, False, **how), ranks, "fork")
        rest = run_world(job(folder, None, True, **how), ranks, "fork")
        for rank in range(ranks):
            assert first[rank] + rest[rank] == whole[rank], (stop, rank)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 4)])
def test_another_number_of_ranks_sees_the_rest_of_the_epoch(before: int, after: int, tmp_path: Path) -> None:
    how = {"even_batches": False}
    first = run_world(job(str(tmp_path), 3, False, **how), before, "fork")
    rest = run_world(_rest(str(tmp_path)), after, "fork")
    seen = [number for rank in first for _, numbers, _, _ in rank for number in numbers]
    assert sorted(seen + [number for rank in rest for number in rank]) == list(range(SAMPLES))


def _rest(folder: str) -> Any:
    def each(rank: int, n: int) -> list[int]:
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=False))
        model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        loader = DataLoader(Noisy(SAMPLES), batch_size=2, shuffle=True)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        accelerator.load_state(folder)
        return [int(number) for batch in loader for number in batch[:, 0]]

    return each
