"""Checkpoints of several ranks."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from accelerate.accelerator import Accelerator
from accelerate.checkpoint.adapter import LoadReport
from accelerate.checkpoint.manifest import Manifest
from accelerate.config.project import ProjectConfiguration
from accelerate.test_utils.world import RanksFailedError, run_world

ENV = {"ACCELERATE_CHECKPOINT_FSYNC": "0"}
ITEMS = 24


class Run:
    """Data-parallel training that notes what it sees."""

    def __init__(self, **settings: Any) -> None:
        torch.manual_seed(0)
        self.accelerator = Accelerator(cpu=True, **settings)
        net = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        loader = torch.utils.data.DataLoader(torch.arange(float(ITEMS)).view(-1, 1), batch_size=1, shuffle=True)
        self.net, self.optimizer, self.loader = self.accelerator.prepare(net, optimizer, loader)

    def steps(self, count: int, after: int = 0, do: Callable[[], Any] = lambda: None) -> list[tuple[float, float]]:
        seen: list[tuple[float, float]] = []
        for batch in self.loader:
            loss = self.net(batch).pow(2).mean()
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
            seen.append((batch.item(), loss.item()))
            if len(seen) == after:
                do()
            if len(seen) == count:
                break
        return seen

    def weights(self) -> list[float]:
        return [p.detach().sum().item() for p in self.accelerator.unwrap_model(self.net).parameters()]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_on_the_same_ranks_it_goes_on_bit_for_bit(tmp_path: Path, asynchronous: bool) -> None:
    def save(rank: int, n: int) -> Any:
        run = Run()
        run.steps(ITEMS)
        seen = run.steps(ITEMS, 3, lambda: run.accelerator.save_state(tmp_path / "c", asynchronous=asynchronous))
        later = run.steps(ITEMS)
        run.accelerator.end_training()
        return seen[3:], later

    def load(rank: int, n: int) -> Any:
        run = Run()
        torch.manual_seed(rank + 77)
        report = run.accelerator.load_state(tmp_path / "c")
        assert not report.missing
        return run.steps(ITEMS), run.steps(ITEMS)

    uninterrupted = run_world(save, 2, how="fork", env=ENV)
    assert run_world(load, 2, how="fork", env=ENV) == uninterrupted
    # Dropout differs between the ranks, so their own states were restored and not one for both.
    assert uninterrupted[0] != uninterrupted[1]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 4)])
def test_on_another_number_of_ranks_every_sample_comes_once(tmp_path: Path, before: int, after: int) -> None:
    def save(rank: int, n: int) -> Any:
        run = Run()
        taken = 8 // n
        seen = run.steps(taken, taken, lambda: run.accelerator.save_state(tmp_path / "c"))
        return [item for item, _ in seen], run.weights()

    def load(rank: int, n: int) -> Any:
        run = Run()
        report = run.accelerator.load_state(tmp_path / "c")
        return run.weights(), [item for item, _ in run.steps(ITEMS)], report

    first = run_world(save, before, how="fork", env=ENV)
    then = run_world(load, after, how="fork", env=ENV)
    seen = [item for items, _ in first for item in items] + [item for _, items, _ in then for item in items]
    assert sorted(seen) == [float(i) for i in range(ITEMS)]
    assert all(weights == first[0][1] for weights, _, _ in then)
    told: list[LoadReport] = [report for _, _, report in then]
    for rank in range(before, after):
        assert f"random states of rank {rank}" in told[rank].missing
    for rank in range(after, before):
        assert f"random states of rank {rank}" in told[0].unexpected


def test_the_main_process_may_save_alone(tmp_path: Path) -> None:
    def fn(rank: int, n: int) -> Any:
        run = Run()
        run.steps(2)
        expected = run.weights()
        if run.accelerator.is_main_process:
            run.accelerator.save_state(tmp_path / "c")
        run.accelerator.wait_for_everyone()
        run.steps(1)
        report = run.accelerator.load_state(tmp_path / "c")
        assert run.weights() == expected
        # And then all of them again, which is whole.
        run.accelerator.save_state(tmp_path / "d")
        return report.missing, run.accelerator.load_state(tmp_path / "d").missing

    assert run_world(fn, 2, how="fork", env=ENV) == [((), ()), (("random states of rank 1",), ())]
    notes = json.loads((tmp_path / "c" / "accelerate_manifest.json").read_text())["manifest"]["content"]["notes"]
    assert notes == ["Ranks 1 did not call save_state: their random states are not here."]


def test_a_main_process_that_trains_on_does_not_wait_long_for_those_who_never_come(tmp_path: Path) -> None:
    def fn(rank: int, n: int) -> Any:
        run = Run()
        run.accelerator._saver.grace = 0.4  # type: ignore[attr-defined]
        spent = []
        for _ in run.loader:
            if len(spent) == 3:
                break
            run.steps(1)
            start = time.monotonic()
            if rank == 0:
                run.accelerator.save_state(tmp_path / "c")
            spent.append(time.monotonic() - start)
        run.accelerator.wait_for_everyone()
        return spent

    first, second, third = run_world(fn, 2, how="fork", env=ENV)[0]
    assert first >= 0.4
    assert second < 0.4 > third


def test_a_rank_that_comes_late_goes_on(tmp_path: Path) -> None:
    def fn(rank: int, n: int) -> Any:
        logging.getLogger("accelerate").setLevel("ERROR")
        run = Run()
        run.accelerator._saver.grace = 0.2  # type: ignore[attr-defined]
        run.accelerator._saver._meeting.late = 0.3  # type: ignore[attr-defined]
        if rank == 1:
            time.sleep(1.0)
        run.accelerator.save_state(tmp_path / "c")
        run.accelerator.wait_for_everyone()
        return run.accelerator.load_state(tmp_path / "c").missing

    assert run_world(fn, 2, how="fork", env=ENV) == [(), ("random states of rank 1",)]


def test_what_stops_the_main_process_stops_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    def fn(rank: int, n: int) -> Any:
        run = Run()
        try:
            run.accelerator.save_state(tmp_path / "file" / "c")
        except RuntimeError as error:
            return str(error)
        return None

    told = run_world(fn, 2, how="fork", env=ENV)
    assert all("file/c" in text for text in told)
    assert "main process" in told[1]


def test_damage_and_mismatch_are_raised_on_every_rank_before_anything_changes(tmp_path: Path) -> None:
    def fn(rank: int, n: int) -> Any:
        run = Run()
        run.steps(1)
        run.accelerator.save_state(tmp_path / "c")
        run.steps(1)
        before, told = run.weights(), list[Any]()
        if rank == 0:
            path = tmp_path / "c" / "optimizer.bin"
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 4
            path.write_bytes(data)
        run.accelerator.wait_for_everyone()
        try:
            run.accelerator.load_state(tmp_path / "c")
        except RuntimeError as error:
            told.append((type(error).__name__, "optimizer.bin" in str(error)))
        run.accelerator.register_for_checkpointing(torch.optim.SGD([torch.ones(1)], lr=0.1))
        try:
            run.accelerator.load_state(tmp_path / "c", verify=False)
        except RuntimeError as error:
            told.append(type(error).__name__)
        assert run.weights() == before
        return told

    assert run_world(fn, 2, how="fork", env=ENV) == [[("CheckpointDamagedError", True), "CheckpointMismatchError"]] * 2


def test_machines_that_share_no_files_each_keep_a_whole_copy(tmp_path: Path) -> None:
    def fn(rank: int, n: int) -> Any:
        own = tmp_path / f"machine_{rank}"
        run = Run(
            project_config=ProjectConfiguration(str(own), automatic_checkpoint_naming=True, save_on_each_node=True)
        )
        seen = run.steps(5, 2, lambda: run.accelerator.save_state(own / "c"))
        run.accelerator.wait_for_everyone()
        run.accelerator.load_state(own / "c")
        return run.steps(3) == seen[2:]

    # The main process decides where to save; the second machine's path is its own.
    assert run_world(fn, 2, how="fork", env=ENV, num_nodes=2) == [True, True]
    for rank in range(2):
        manifest = Manifest.read(tmp_path / f"machine_{rank}" / "c")
        assert manifest is not None
        assert {"random_states_0.pkl", "random_states_1.pkl", "model.safetensors"} <= {r.path for r in manifest.files}


def test_numbers_are_the_same_on_every_rank(tmp_path: Path) -> None:
    def fn(rank: int, n: int) -> Any:
        run = Run(project_config=ProjectConfiguration(str(tmp_path), automatic_checkpoint_naming=True, total_limit=1))
        paths = [Path(str(run.accelerator.save_state())).name for _ in range(3)]
        return paths, run.accelerator.save_iteration

    told = run_world(fn, 2, how="fork", env=ENV)
    assert told == [(["checkpoint_0", "checkpoint_1", "checkpoint_2"], 3)] * 2
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["checkpoint_2"]


def test_ranks_stop_at_the_same_step() -> None:
    def fn(rank: int, n: int) -> Any:
        import os
        import signal

        run = Run()
        stopped = None
        for step in range(8):
            run.steps(1)
            if run.accelerator.should_stop:
                stopped = step
                break
            if rank == 1 and step == 3:
                os.kill(os.getpid(), signal.SIGTERM)
        run.accelerator.end_training()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        return stopped

    assert run_world(fn, 2, how="fork", env=ENV) == [4, 4]


def test_one_rank_that_loads_alone_is_told(tmp_path: Path) -> None:
    def fn(rank: int, n: int) -> Any:
        run = Run()
        run.accelerator.save_state(tmp_path / "c")
        if rank == 0:
            run.accelerator.load_state(tmp_path / "c")
        else:
            run.accelerator.wait_for_everyone()

    with pytest.raises(RanksFailedError, match="different collective calls"):
        run_world(fn, 2, how="fork", env={**ENV, "ACCELERATE_HANG_TIMEOUT": "3"})
