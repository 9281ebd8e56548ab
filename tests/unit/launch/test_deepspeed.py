"""DeepSpeed jobs on the hosts of a host file."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from accelerate.errors import LaunchError
from accelerate.launch.base import LaunchPlan
from accelerate.launch.deepspeed import RUNNER, DeepSpeedLauncher, exports

Planned = Callable[..., LaunchPlan]

COMMON = "--use_deepspeed --zero_stage 3 --num_machines 2 --num_processes 8 --main_process_ip 10.0.0.1"
START = [sys.executable, "-m", RUNNER, "--no_local_rank", "--hostfile", "hosts"]
END = ["--master_addr", "10.0.0.1", "--master_port", "29500", "train.py", "--x", "1"]


@pytest.mark.parametrize("launcher", ["pdsh", "openmpi", "mvapich", "mpich", "slurm"])
def test_each_launcher_is_the_runners_own(planned: Planned, launcher: str) -> None:
    line = f"{COMMON} --deepspeed_hostfile hosts --deepspeed_multinode_launcher {launcher} train.py --x 1"
    plan = planned(line)
    assert (plan.kind, plan.world_size, plan.nprocs, plan.machines) == ("deepspeed", 8, 4, (2, 2))
    assert list(plan.argv) == [*START, "--num_nodes", "2", "--num_gpus", "4", "--launcher", launcher, *END]
    assert plan.environment["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert plan.environment["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"


def test_a_host_file_alone_means_pdsh_and_all_its_slots(planned: Planned) -> None:
    plan = planned("--use_deepspeed --deepspeed_hostfile hosts -m package.train")
    assert list(plan.argv) == [*START, "--launcher", "pdsh", "--master_port", "29500", "--module", "package.train"]


@pytest.mark.parametrize(
    ("flag", "word"), [("--deepspeed_inclusion_filter", "--include"), ("--deepspeed_exclusion_filter", "--exclude")]
)
def test_a_filter_stands_for_the_numbers(planned: Planned, flag: str, word: str) -> None:
    plan = planned(f"{COMMON} --deepspeed_hostfile hosts {flag} a:0,1@b:2 train.py --x 1")
    assert list(plan.argv) == [*START, word, "a:0,1@b:2", "--launcher", "pdsh", *END]


def test_without_ssh_every_machine_says_which_it_is(planned: Planned) -> None:
    line = f"{COMMON} --machine_rank 1 --deepspeed_hostfile hosts --deepspeed_multinode_launcher nossh train.py --x 1"
    assert list(planned(line).argv) == [
        *START, "--num_nodes", "2", "--num_gpus", "4", "--no_ssh", "--node_rank", "1", *END,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--deepspeed_multinode_launcher standard --deepspeed_hostfile hosts", "standard reads none"),
        ("--deepspeed_inclusion_filter a --deepspeed_exclusion_filter b", "takes one of them"),
        ("--deepspeed_hostfile hosts --max_restarts 2", "elastic"),
        ("--deepspeed_hostfile hosts --num_processes 7", "multiple of 2"),
    ],
)
def test_what_cannot_be_started_says_why(planned: Planned, words: str, says: str) -> None:
    with pytest.raises(LaunchError, match=says):
        planned(f"{COMMON} {words} train.py")


def test_one_machine_goes_by_torchs_agent(planned: Planned) -> None:
    assert planned("--use_deepspeed --num_processes 2 train.py").kind == "torchrun"
    assert planned("--use_deepspeed --deepspeed_multinode_launcher pdsh --num_processes 2 train.py").kind == "torchrun"


def test_the_environment_file_has_every_variable_once() -> None:
    own = "NCCL_DEBUG=INFO\nACCELERATE_USE_DEEPSPEED=false\nnothing\n"
    text = exports([own, own], {"ACCELERATE_USE_DEEPSPEED": "true", "A": "x=y"})
    assert text == "A=x=y\nACCELERATE_USE_DEEPSPEED=true\nNCCL_DEBUG=INFO\n"
    with pytest.raises(LaunchError, match="A holds a line break"):
        exports([], {"A": "1\n2"})


def test_a_run_leaves_no_file_behind(
    planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The runner is a stand-in that shows what it was given."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / ".deepspeed_env").write_text("MINE=1\n")
    monkeypatch.chdir(tmp_path / "temporary")
    plan = planned("--use_deepspeed --zero_stage 1 --deepspeed_hostfile hosts train.py")
    stand_in = tmp_path / "runner"
    stand_in.write_text('#!/bin/sh\nstat -c %a "$DS_ENV_FILE"; cat "$DS_ENV_FILE"; exit 3\n')
    stand_in.chmod(stat.S_IRWXU)
    object.__setattr__(plan, "argv", (str(stand_in),))
    for _ in range(2):
        assert DeepSpeedLauncher().run(plan) == 3
    out = capfd.readouterr().out
    assert out.splitlines()[0] == "600"
    assert out.count("MINE=1") == 2
    assert out.count("ACCELERATE_DEEPSPEED_ZERO_STAGE=1") == 2
    assert (tmp_path / ".deepspeed_env").read_text() == "MINE=1\n"
    assert os.listdir(tmp_path / "temporary") == []
