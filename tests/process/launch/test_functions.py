"""A function as the program of a job, with its configuration as code."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import accelerate
from accelerate import Accelerator, RunConfig, env
from accelerate.config.sections.fsdp import FsdpSection
from accelerate.errors import ConfigError, ConflictError, LaunchError, StateError


def test_every_rank_returns_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a file nor the environment has a say."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "7")
    before = env.snapshot()

    def body(word: str, *, number: int) -> tuple[Any, ...]:
        acc = Accelerator()
        total = acc.reduce(torch.tensor(float(acc.process_index + number)))
        return word, acc.process_index, acc.num_processes, acc.mixed_precision, float(total)

    config = RunConfig(num_processes=2, cpu=True, mixed_precision="bf16")
    assert accelerate.launch(body, "a", config=config, number=1) == [("a", r, 2, "bf16", 3.0) for r in (0, 1)]
    assert env.snapshot() == before
    config = RunConfig(num_processes=2, cpu=True, gradient_accumulation_steps=3)
    found = accelerate.launch(
        lambda: (Accelerator().mixed_precision, Accelerator().gradient_accumulation_steps), config=config
    )
    assert found == [("no", 3)] * 2


def test_a_strategy_is_chosen_by_its_section() -> None:
    def body() -> tuple[str, int]:
        acc = Accelerator()
        model = acc.prepare(torch.nn.Linear(4, 2))
        return str(acc.distributed_type.value), sum(p.to_local().numel() for p in model.parameters())

    config = RunConfig(num_processes=2, cpu=True, use_fsdp=True, fsdp=FsdpSection(version=2))
    assert accelerate.launch(body, config=config) == [("FSDP", 5), ("FSDP", 5)]


def test_one_rank_runs_here(fresh_state: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")

    def body() -> tuple[int, str]:
        return os.getpid(), Accelerator(cpu=True).mixed_precision

    assert accelerate.launch(body) == [(os.getpid(), "no")]
    assert os.environ["ACCELERATE_MIXED_PRECISION"] == "fp16"


def test_the_first_error_is_raised_here() -> None:
    def body() -> None:
        if os.environ["RANK"] == "1":
            raise KeyError("bad")
        signal.pause()

    with pytest.raises(KeyError, match="bad") as caught:
        accelerate.launch(body, config=RunConfig(num_processes=2, cpu=True))
    assert str(caught.value.__cause__).startswith("rank 1 of 2 raised this")


def test_what_cannot_be_is_said_before_anything_starts(fresh_state: None, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    with pytest.raises(ConflictError, match=r"RunConfig: use_fsdp.*RunConfig: use_deepspeed"):
        accelerate.launch(mark.touch, config=RunConfig(use_fsdp=True, use_deepspeed=True))
    with pytest.raises(ConfigError, match="RunConfig: mixed_precision"):
        accelerate.launch(mark.touch, config=RunConfig(mixed_precision="bf61"))
    with pytest.raises(LaunchError, match="at least one process"):
        accelerate.launch(mark.touch, config=RunConfig(num_processes=0))
    Accelerator(cpu=True)
    with pytest.raises(StateError, match=r"accelerate\.launch\(\) was called after an Accelerator"):
        accelerate.launch(mark.touch, config=RunConfig(num_processes=2, cpu=True))
    assert not mark.exists()


def test_the_package_of_that_name_is_still_there() -> None:
    import accelerate.launch.base
    from accelerate.launch import ports

    assert callable(accelerate.launch) and ports.free_port()
