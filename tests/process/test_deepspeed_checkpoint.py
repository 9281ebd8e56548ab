"""Checkpoints of DeepSpeed's engine: going on as if nothing had been, on other ranks, under other stages, killed."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.cli.main import main
from accelerate.errors import CheckpointMismatchError, PickleRefusedError
from accelerate.test_utils.world import fork_world, run_world
from deepspeed_jobs import warm

pytestmark = pytest.mark.usefixtures("deepspeed_is_warm")
deepspeed_is_warm = pytest.fixture(scope="module")(warm)


class Net(nn.Module):
    """Two layers whose sizes no number of ranks divides, a buffer that moves, a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.up, self.down = nn.Linear(7, 13), nn.Linear(13, 3)
            self.fixed = nn.Linear(7, 13).requires_grad_(False)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return self.down(torch.relu(self.up(x) + self.fixed(x)))


def batches(rank: int, world: int, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    found = []
    for _ in range(count):
        x, y = torch.randn(8, 7, generator=generator), torch.randn(8, 3, generator=generator)
        part = slice(rank * 8 // world, (rank + 1) * 8 // world)
        found.append((x[part], y[part]))
    return found


class Job:
    """An Accelerator, its engine, and a schedule that is ours."""

    def __init__(self, stage: int, shift: float = 0.0) -> None:
        plugin = DeepSpeedPlugin(zero_stage=stage, zero3_save_16bit_model=True)
        self.accelerator = Accelerator(deepspeed_plugin=plugin, step_scheduler_once=True)
        net = Net()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(shift)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
        self.model, self.optimizer, self.scheduler = self.accelerator.prepare(net, optimizer, scheduler)

    def train(self, first: int, last: int) -> list[float]:
        state, losses = self.accelerator, []
        for x, y in batches(state.process_index, state.num_processes, last)[first:]:
            loss = nn.functional.mse_loss(self.model(x), y)
            state.backward(loss)
            state.clip_grad_norm_(self.model.parameters(), 0.5)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            losses.append(state.gather(loss.detach().reshape(1)).mean().item())
        return losses

    def seen(self) -> float:
        return float(self.accelerator.unwrap_model(self.model).seen)


def saved(stage: int, folder: Path, ranks: int = 2) -> list[float]:
    """Trains 4 steps, saves, trains 4 more; the losses of the last 4."""

    def rank_main(rank: int, world: int) -> list[float]:
        job = Job(stage)
        job.train(0, 4)
        job.accelerator.save_state(folder)
        return job.train(4, 8)

    return run_world(rank_main, ranks, how="fork")[0]


def resumed(stage: int, folder: Path, ranks: int) -> list[tuple[list[float], float]]:
    def rank_main(rank: int, world: int) -> tuple[list[float], float]:
        job = Job(stage, shift=0.5)  # what is not restored shows
        job.accelerator.load_state(folder)
        seen = job.seen()
        return job.train(4, 8), seen

    return run_world(rank_main, ranks, how="fork")


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_going_on_equals_not_having_stopped(stage: int, tmp_path: Path) -> None:
    wanted = saved(stage, tmp_path / "state")
    for losses, seen in resumed(stage, tmp_path / "state", 2):
        assert losses == wanted
        assert seen == 4.0


@pytest.mark.parametrize(("stage", "then", "ranks"), [(2, 2, 1), (2, 2, 4), (3, 3, 1), (3, 3, 4), (1, 3, 2), (3, 2, 4)])
def test_going_on_with_other_ranks_or_another_stage(stage: int, then: int, ranks: int, tmp_path: Path) -> None:
    wanted = saved(stage, tmp_path / "state")
    for losses, seen in resumed(then, tmp_path / "state", ranks):
        assert losses == pytest.approx(wanted, rel=1e-5 if ranks != 2 else 1e-6)
        assert seen == 4.0
    assert [path.name for path in tmp_path.iterdir()] == ["state"], "the converted form is thrown away"


def test_a_stage_that_cannot_be_converted_is_named(tmp_path: Path) -> None:
    saved(0, tmp_path / "state")

    def rank_main(rank: int, world: int) -> None:
        job = Job(2)
        with pytest.raises(CheckpointMismatchError, match="stage 0, and this job trains under stage 2"):
            job.accelerator.load_state(tmp_path / "state")

    run_world(rank_main, 2, how="fork")


class Trap:
    """What a stranger may put into a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.mark), "w")


def test_a_strangers_file_runs_nothing(tmp_path: Path) -> None:
    folder, mark = tmp_path / "state", tmp_path / "ran"
    saved(2, folder)
    path = next((folder / "pytorch_model").glob("*zero_pp_rank_1_*optim_states.pt"))
    held = torch.load(path, weights_only=False)
    torch.save({**held, "more": Trap(mark)}, path)

    def rank_main(rank: int, world: int) -> tuple[bool, bool]:
        job = Job(2, shift=0.5)
        weight = next(job.model.parameters()).detach().clone()
        with pytest.raises(PickleRefusedError, match=r"zero_pp_rank_1_.*\bopen\b.*allow_pickle=True"):
            job.accelerator.load_state(folder, verify=False)
        same = torch.equal(weight, next(job.model.parameters()))
        quiet = not mark.exists()
        job.accelerator.wait_for_everyone()
        job.accelerator.load_state(folder, verify=False, allow_pickle=True)
        return same and quiet, mark.exists()

    assert run_world(rank_main, 2, how="fork") == [(True, True)] * 2


def test_the_files_are_recorded_and_the_weights_one_call_away(tmp_path: Path) -> None:
    from accelerate.utils.deepspeed import zero_to_fp32

    def rank_main(rank: int, world: int) -> dict[str, torch.Tensor]:
        job = Job(3)
        job.train(0, 2)
        job.accelerator.save_state(tmp_path / "state")
        return job.accelerator.get_state_dict(job.model)

    wanted, nothing = run_world(rank_main, 2, how="fork")
    assert nothing == {}
    folder = tmp_path / "state"
    assert (folder / "latest").read_text() == "pytorch_model"
    manifest = json.loads(next(folder.glob("*manifest*")).read_text())
    assert any("zero_pp_rank_1" in path for path in manifest["manifest"]["files"])
    found = zero_to_fp32(folder)
    assert sorted(found) == sorted(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(found[name].reshape(tensor.shape), tensor), name
    for source in (folder, folder / "pytorch_model"):
        assert main(["merge-weights", str(source), str(tmp_path / "whole")]) == 0
        merged = load_file(tmp_path / "whole" / "model.safetensors")
        assert sorted(merged) == sorted(wanted)
        assert all(torch.equal(merged[name], tensor) for name, tensor in wanted.items())
        (tmp_path / "whole" / "model.safetensors").unlink()
    assert main(["merge-weights", str(folder), str(tmp_path / "whole"), "--remove_checkpoint_dir"]) == 1
    assert folder.is_dir()


def test_a_job_killed_while_it_saves_leaves_whole_checkpoints(tmp_path: Path) -> None:
    """Ten deaths, at ten instants of saving: what a reader finds loads."""

    def rank_main(rank: int, world: int) -> None:
        job = Job(2)
        for number in range(1000):
            job.train(0, 1)
            job.accelerator.save_state(tmp_path / f"checkpoint_{number}")
            if rank == 0 and number == 0:
                (tmp_path / "ready").touch()

    for turn in range(10):
        for path in tmp_path.iterdir():
            _remove(path)
        with fork_world(rank_main, 2, timeout=60) as world:
            until = time.monotonic() + 40
            while not (tmp_path / "ready").exists():
                assert time.monotonic() < until, "the job never saved"
                time.sleep(0.005)
            time.sleep(0.017 * turn)
            for rank in (turn % 2, 1 - turn % 2):
                world.kill(rank, signal.SIGKILL)
        whole = sorted((p for p in tmp_path.glob("checkpoint_*")), key=lambda p: int(p.name.rpartition("_")[2]))
        assert whole, "the first was complete"
        _loads(whole[-1])


def _loads(folder: Path) -> None:
    from accelerate.checkpoint.local_store import LocalStore

    store = LocalStore()
    manifest = store.manifest(folder)
    assert manifest is not None, f"{folder} shows though it is not whole"
    store.verify(folder, manifest)
    for path in folder.rglob("*.pt"):
        torch.load(path, map_location="cpu", weights_only=False)


def _remove(path: Path) -> None:
    import shutil

    shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_several_engines_have_folders_of_their_own(tmp_path: Path) -> None:
    def rank_main(rank: int, world: int) -> Any:
        first = Job(2)
        second_net = nn.Linear(5, 2)
        second, optimizer = first.accelerator.prepare(second_net, torch.optim.SGD(second_net.parameters(), lr=0.1))
        first.train(0, 1)
        first.accelerator.save_state(tmp_path / "state")
        before = [p.detach().clone() for p in second.parameters()]
        with torch.no_grad():
            for parameter in second.parameters():
                parameter.zero_()
        first.accelerator.load_state(tmp_path / "state")
        return all(torch.equal(a, b) for a, b in zip(before, second.parameters(), strict=True))

    assert run_world(rank_main, 2, how="fork") == [True, True]
    assert {path.name for path in (tmp_path / "state").iterdir() if path.is_dir()} == {
        "pytorch_model",
        "pytorch_model_1",
    }
