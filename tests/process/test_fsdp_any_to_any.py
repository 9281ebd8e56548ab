"""A checkpoint written under one strategy at one number of ranks goes on under any other at any other."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from accelerate.test_utils.world import RanksFailedError, run_world
from sharded_jobs import Job, Result, accelerator, fresh, plain, plugin, train

STEPS = 5
WORLDS = [("single", 1), ("ddp", 2), ("ddp", 4), ("fsdp1", 2), ("fsdp1", 4), ("fsdp2", 2), ("fsdp2", 4)]


def by_kind(parameters: Any) -> torch.optim.Optimizer:
    parameters = list(parameters)
    matrices, rest = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-2)


def plugin_of(name: str, **kwargs: Any) -> Any:
    return {"fsdp1": lambda: plugin(1, **kwargs), "fsdp2": lambda: plugin(2, **kwargs)}.get(name, lambda: None)()


def half(job: Job, second: bool) -> Job:
    part = copy.copy(job)
    batches = job.batches()[STEPS:] if second else job.batches()[:STEPS]
    part.batches = lambda: batches  # type: ignore[method-assign]
    return part


@pytest.fixture(scope="module")
def job() -> Job:
    return Job(fresh(tied=True, scalar=True), steps=2 * STEPS, optimizer=by_kind)


@pytest.fixture(scope="module")
def written(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, int, str], Path]]:
    """The first half of the job under every strategy, saved; by (strategy, ranks, kind of state)."""
    root = tmp_path_factory.mktemp("any-to-any")
    found: dict[tuple[str, int, str], Path] = {}
    for name, n in WORLDS:
        kinds = ["SHARDED_STATE_DICT"] if name.startswith("fsdp") else ["whole"]
        if kinds[0] != "whole" and n == 2:
            kinds.append("FULL_STATE_DICT")
        for kind in kinds:
            folder = root / f"{name}-{n}-{kind}"

            def rank_main(rank: int, n: int, name: str = name, kind: str = kind, folder: Path = folder) -> list[float]:
                settings = {"state_dict_type": kind} if kind != "whole" else {}
                acc = accelerator(job, plugin_of(name, **settings))
                model = copy.deepcopy(job.model)
                model, optimizer = acc.prepare(model, job.optimizer(model.parameters()))
                result = train(acc, half(job, second=False), model, optimizer)
                acc.save_state(folder)
                return result.losses

            losses = run_world(rank_main, n, how="fork")[0]
            assert losses == pytest.approx(plain(job).losses[:STEPS], rel=1e-6)
            found[name, n, kind] = folder
    return found


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("name", "n"), WORLDS)
def test_goes_on_as_if_nothing_had_happened(
    name: str, n: int, job: Job, written: dict[tuple[str, int, str], Path]
) -> None:
    def rank_main(rank: int, n: int) -> dict[tuple[str, int, str], Result]:
        found = {}
        for key, folder in written.items():
            acc = accelerator(job, plugin_of(name))
            model = fresh(99, tied=True, scalar=True)
            model, optimizer = acc.prepare(model, job.optimizer(model.parameters()))
            acc.load_state(folder)
            found[key] = train(acc, half(job, second=True), model, optimizer)
            acc.state._reset_state()
            acc.free_memory()
        return found

    wanted = plain(job)
    for results in run_world(rank_main, n, how="fork", timeout=150):
        for key, result in results.items():
            assert result.losses == pytest.approx(wanted.losses[STEPS:], rel=1e-6), f"{key} -> {name} at {n}"
            for weight, tensor in result.weights.items():
                assert torch.allclose(tensor, wanted.weights[weight], rtol=1e-5, atol=1e-6), (key, weight)


@pytest.mark.parametrize("name", ["fsdp1", "fsdp2"])
def test_a_save_on_the_main_process_alone_is_an_error_within_seconds(name: str, tmp_path: Path) -> None:
    def rank_main(rank: int, n: int) -> None:
        job = Job(fresh(), steps=1)
        acc = accelerator(job, plugin_of(name))
        model, optimizer = acc.prepare(job.model, job.optimizer(job.model.parameters()))
        train(acc, job, model, optimizer)
        if acc.is_main_process:
            acc.save_state(tmp_path / "alone")
        acc.wait_for_everyone()
        train(acc, job, model, optimizer)

    started = time.monotonic()
    with pytest.raises(RanksFailedError) as failed:
        run_world(rank_main, 2, how="fork", timeout=50)
    assert time.monotonic() - started < 40
    endings = {outcome.rank: outcome for outcome in failed.value.outcomes}
    assert endings[0].ended == endings[1].ended == "raised", failed.value
    assert "Call it on every rank" in endings[0].text
    assert not (tmp_path / "alone").exists()
