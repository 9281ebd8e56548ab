"""Checkpoints of state that is divided over ranks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from accelerate.accelerator import Accelerator
from accelerate.checkpoint.manifest import Manifest
from accelerate.config.fsdp import FullyShardedDataParallelPlugin
from accelerate.test_utils.world import RanksFailedError, run_world

ENV = {"ACCELERATE_CHECKPOINT_FSYNC": "0"}


class Run:
    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2), cpu=True)
        net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
        self.net, self.optimizer = self.accelerator.prepare(net, optimizer)

    def steps(self, count: int) -> list[float]:
        losses = []
        for _ in range(count):
            loss = (self.net(torch.rand(2, 4)) - 1).pow(2).mean()
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses


@pytest.mark.parametrize("asynchronous", [False, True])
def test_each_rank_writes_its_part_and_it_goes_on_bit_for_bit(tmp_path: Path, asynchronous: bool) -> None:
    def fn(rank: int, n: int) -> Any:
        run = Run()
        run.steps(2)
        save = run.accelerator.save_state(tmp_path / "c", asynchronous=asynchronous)
        following = run.steps(3)
        if asynchronous:
            save.wait()
        run.accelerator.load_state(tmp_path / "c")
        return run.steps(3) == following

    assert run_world(fn, 2, how="fork", env=ENV) == [True, True]
    manifest = Manifest.read(tmp_path / "c")
    assert manifest is not None
    names = {record.path for record in manifest.files}
    for folder in ("pytorch_model_fsdp_0", "optimizer_0"):
        assert {f"{folder}/.metadata", f"{folder}/__0_0.distcp", f"{folder}/__1_0.distcp"} <= names


def test_damage_in_one_ranks_part_is_named_on_all(tmp_path: Path) -> None:
    def fn(rank: int, n: int) -> Any:
        run = Run()
        run.steps(1)
        run.accelerator.save_state(tmp_path / "c")
        if rank == 0:
            path = tmp_path / "c" / "pytorch_model_fsdp_0" / "__1_0.distcp"
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
        try:
            run.accelerator.load_state(tmp_path / "c")
        except RuntimeError as error:
            return "pytorch_model_fsdp_0/__1_0.distcp (model 'net'" in str(error)
        return None

    assert run_world(fn, 2, how="fork", env=ENV) == [True, True]


def test_the_main_process_cannot_save_alone(tmp_path: Path) -> None:
    started = time.monotonic()

    def fn(rank: int, n: int) -> Any:
        run = Run()
        run.accelerator._saver.grace = 1.0  # type: ignore[attr-defined]
        run.steps(1)
        if rank == 0:
            run.accelerator.save_state(tmp_path / "c")
        run.accelerator.wait_for_everyone()

    with pytest.raises(RanksFailedError) as raised:
        run_world(fn, 2, how="fork", env=ENV)
    text = str(raised.value)
    assert "save_state was called without rank 1 of 2" in text
    assert "RankLeftError" in text
    assert time.monotonic() - started < 20
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_cannot_write_its_part_stops_the_save(tmp_path: Path) -> None:
    def fn(rank: int, n: int) -> Any:
        run = Run()
        run.accelerator.save_state(tmp_path / "c")
        before = (tmp_path / "c" / "accelerate_manifest.json").read_bytes()
        if rank == 1:
            from accelerate.checkpoint import dcp

            def fail(self: Any) -> bytes:
                raise OSError("no space")

            dcp.FolderWriter.write = fail  # type: ignore[method-assign]
        told = None
        try:
            run.accelerator.save_state(tmp_path / "c")
        except (RuntimeError, OSError) as error:
            told = str(error)
        run.accelerator.wait_for_everyone()
        return told, (tmp_path / "c" / "accelerate_manifest.json").read_bytes() == before

    (main, same), (other, also) = run_world(fn, 2, how="fork", env=ENV)
    assert "Rank 1 could not write its part: OSError: no space" in main
    assert "no space" in other
    assert same
    assert also
