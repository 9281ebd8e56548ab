"""Functions started on forked ranks, as from a notebook and from a test."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

from accelerate import debug_launcher, env, notebook_launcher
from accelerate.errors import ConfigError, LaunchError, StateError
from accelerate.launchers import test_launch as check_state
from accelerate.state import PartialState
from accelerate.utils import PrepareForLaunch

Starter = Callable[..., None]


def start_debug(function: Callable[..., Any], args: tuple[Any, ...] = ()) -> None:
    debug_launcher(function, args, num_processes=2)


def start_notebook(function: Callable[..., Any], args: tuple[Any, ...] = ()) -> None:
    notebook_launcher(function, args, num_processes=2)


both = pytest.mark.parametrize("start", [start_debug, start_notebook])


def write(folder: Path, text: str) -> None:
    (folder / f"{os.environ['RANK']}.txt").write_text(text)


def texts(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.glob("*.txt"))]


@both
def test_ranks_are_one_group_and_can_train(start: Starter, tmp_path: Path) -> None:
    # A parent that has used its threads, as a notebook has.
    torch.nn.Linear(200, 200)(torch.ones(100, 200)).sum().backward()

    def body(word: str) -> None:
        state = PartialState()
        total = torch.tensor([state.process_index + 1.0])
        dist.all_reduce(total)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(200, 1))
        (model(torch.full((2, 200), state.process_index + 1.0)).sum() / 2).backward()
        gradient = model.module.weight.grad[0, 0].item()
        write(tmp_path, f"{word} {state.num_processes} {total.item()} {gradient} {state.fork_launched}")

    start(body, ("$$a ${local_rank}",))
    assert texts(tmp_path) == ["$$a ${local_rank} 2 3.0 1.5 True"] * 2


@both
def test_the_error_of_a_rank_is_raised_here_with_its_rank(start: Starter) -> None:
    def body() -> None:
        if os.environ["RANK"] == "1":
            raise KeyError("bad")
        time.sleep(60)

    with pytest.raises(KeyError, match="bad") as caught:
        start(body)
    cause = caught.value.__cause__
    assert isinstance(cause, LaunchError)
    assert str(cause).startswith("rank 1 of 2 raised this:\n\nTraceback (most recent call last):\n")
    assert "in body" in str(cause) and "ranks.py" not in str(cause)


@both
def test_an_error_that_cannot_be_sent_is_told(start: Starter) -> None:
    class OwnError(Exception):
        pass

    def body() -> None:
        raise OwnError("only here")

    with pytest.raises(LaunchError, match=r"(?s)rank \d of 2 raised this.*OwnError: only here"):
        start(body)


@both
def test_a_killed_rank_is_named(start: Starter) -> None:
    def body() -> None:
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    with pytest.raises(LaunchError, match=r"[Rr]ank 1 of 2 was ended by SIGKILL"):
        start(body)


@both
def test_nothing_is_started_after_a_state_was_constructed(start: Starter, fresh_state: None, tmp_path: Path) -> None:
    PartialState(cpu=True)
    said = r"after an Accelerator or a state .* by .*test_notebook\.py:\d+ in test_nothing"
    with pytest.raises(StateError, match=said):
        start(lambda: write(tmp_path, "ran"))
    assert texts(tmp_path) == []


@both
def test_the_environment_is_put_back(start: Starter) -> None:
    before = env.snapshot()
    handlers = [signal.getsignal(sig) for sig in (signal.SIGINT, signal.SIGTERM)]
    start(check_state)
    assert env.snapshot() == before
    assert [signal.getsignal(sig) for sig in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_precision_and_device_reach_the_ranks(tmp_path: Path) -> None:
    def body() -> None:
        write(tmp_path, f"{os.environ['ACCELERATE_MIXED_PRECISION']} {os.environ.get('ACCELERATE_USE_CPU')}")

    notebook_launcher(body, num_processes=2, mixed_precision="BF16")
    assert texts(tmp_path) == ["bf16 None"] * 2


def test_a_failed_attempt_is_started_again(tmp_path: Path) -> None:
    def body() -> None:
        PartialState()
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        write(tmp_path, attempt)
        dist.barrier()
        if attempt == "0" and os.environ["RANK"] == "1":
            raise ValueError("first attempt")

    notebook_launcher(body, num_processes=2, max_restarts=1, monitor_interval=0.05)
    assert texts(tmp_path) == ["1", "1"]


def test_one_rank_runs_here(tmp_path: Path) -> None:
    seen = []
    notebook_launcher(lambda word: seen.append((word, os.environ["ACCELERATE_MIXED_PRECISION"])), ("x",), 1, "fp16")
    assert seen == [("x", "fp16")]
    assert "ACCELERATE_MIXED_PRECISION" not in os.environ
    notebook_launcher(lambda: seen.append(None))  # no device: one rank
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("words", "error", "says"),
    [
        ({"mixed_precision": "bf61"}, ConfigError, "mixed_precision='bf61'"),
        ({"num_processes": 0}, LaunchError, "at least one process"),
        ({"num_nodes": 2, "node_rank": 2, "num_processes": 1}, LaunchError, "machines 0 to 1"),
        ({"use_port": "http", "num_processes": 2}, LaunchError, "use_port='http'"),
        ({"rdzv_endpoint": "host", "num_processes": 2}, LaunchError, "address:port"),
    ],
)
def test_what_cannot_be_started(words: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        notebook_launcher(lambda: None, **words)


def test_a_port_that_was_asked_for_and_is_taken() -> None:
    import socket

    with socket.socket() as holder:
        holder.bind(("", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        with pytest.raises(LaunchError, match=f"Port {port}"):
            notebook_launcher(lambda: None, num_processes=2, use_port=port)


def by_file(folder: str) -> None:
    (Path(folder) / f"{dist.get_rank()}.txt").write_text(f"{dist.get_world_size()} {os.environ['LOCAL_RANK']}")
    dist.destroy_process_group()


def test_prepare_for_launch_is_what_torch_starts(tmp_path: Path) -> None:
    start = PrepareForLaunch(by_file, debug=True)
    assert pickle.loads(pickle.dumps(start)).launcher is by_file
    with env.patch_environment(world_size=2, accelerate_debug_rdv_file=tmp_path / "meeting"):
        torch.multiprocessing.start_processes(start, args=(str(tmp_path),), nprocs=2, start_method="fork")
    assert texts(tmp_path) == ["2 0", "2 1"]


def test_prepare_for_launch_without_a_meeting_place() -> None:
    with env.patch_environment(world_size=2, rank=None, local_rank=None, fork_launched=None):
        with pytest.raises(LaunchError, match="ACCELERATE_DEBUG_RDV_FILE does not say"):
            PrepareForLaunch(by_file, debug=True)(1, "x")
