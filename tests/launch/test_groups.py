"""What was asked for is what runs: two processes are two ranks of one group (behaviour E1)."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from launching import ACCELERATE, Launch, Script

GROUP = """
import os
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
said = [None] * dist.get_world_size()
dist.all_gather_object(said, (dist.get_rank(), os.environ["LOCAL_RANK"], os.environ.get("OMP_NUM_THREADS")))
if dist.get_rank() == 0:
    print("RESULT", dist.get_world_size(), total.item(), os.environ.get("ACCELERATE_USE_CPU"), said, flush=True)
dist.barrier()
dist.destroy_process_group()
"""

ONE_MACHINE = "[(0, '0', '1'), (1, '1', '1')]"


@pytest.mark.timeout(240)
def test_two_processes_are_one_group(
    launch: Launch, script: Script, tmp_path: Path, left: Callable[[], list[str]]
) -> None:
    path = script(GROUP)
    cpu = launch("--cpu", "--num_processes", 2, path)
    assert (cpu.code, cpu.out) == (0, f"RESULT 2 3 true {ONE_MACHINE}")
    assert "accelerate launch:" not in cpu.screen
    gpu = launch("--multi_gpu", "--num_processes", 2, path)
    assert (gpu.code, gpu.out) == (0, f"RESULT 2 3 None {ONE_MACHINE}")
    assert gpu.screen.count("accelerate launch:") == 1
    assert "--multi_gpu was asked for, but this machine shows no usable GPU" in gpu.screen
    config = tmp_path / "c.yaml"
    config.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n"
    )
    filed = launch("--config_file", config, path)
    assert (filed.code, filed.out) == (0, f"RESULT 2 3 true {ONE_MACHINE}")
    assert left() == []


@pytest.mark.timeout(120)
def test_a_missing_accelerator_is_said_once(launch: Launch, script: Script) -> None:
    done = launch("--multi_gpu", "--num_processes", 2, script("from accelerate import PartialState\nPartialState()\n"))
    assert done.code == 0
    assert [line for line in done.screen.splitlines() if "gloo" in line and "[Gloo]" not in line] == [
        "accelerate launch: --multi_gpu was asked for, but this machine shows no usable GPU. "
        "The job runs 2 processes on the CPU with gloo."
    ]


@pytest.mark.timeout(150)
def test_two_machines_on_one_host_are_one_group(script: Script, tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    line = [ACCELERATE, "launch", "--num_processes", "2", "--num_machines", "2", "--main_process_ip", "127.0.0.1"]
    jobs = [
        subprocess.Popen(
            [*line, "--main_process_port", str(port), "--machine_rank", str(rank), script(GROUP)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=dict(os.environ),
        )
        for rank in (0, 1)
    ]
    screens = [job.communicate(timeout=120)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], screens
    assert "RESULT 2 3 None [(0, '0', '1'), (1, '0', '1')]" in screens[0]


def test_a_port_in_use_is_named(launch: Launch, script: Script) -> None:
    with socket.socket() as holder:
        holder.bind(("", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = launch("--num_processes", 2, "--main_process_port", port, script("print('ran')"))
    assert done.code == 1
    assert done.screen.startswith(f"accelerate launch: Port {port} was asked for")
    assert "Traceback" not in done.screen and "ran" not in done.screen


def test_what_is_not_built_starts_nothing(launch: Launch, script: Script) -> None:
    done = launch("--use_megatron_lm", "--num_processes", 2, script("print('ran')"))
    assert done.code == 1
    assert "Megatron-LM was asked for, which is not built yet" in done.screen and "ran" not in done.screen


@pytest.mark.timeout(120)
def test_a_killed_rank_comes_back_with_all_others(launch: Launch, script: Script) -> None:
    path = script(
        GROUP.replace(
            "dist.barrier()",
            "if dist.get_rank() == 1 and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': os.kill(os.getpid(), 9)\n"
            "dist.barrier()",
        )
    )
    done = launch("--num_processes", 2, "--max_restarts", 1, path)
    assert done.code == 0, done.screen
    assert done.out == "\n".join([f"RESULT 2 3 None {ONE_MACHINE}"] * 2)
    assert "rank 1 of 2 was ended by SIGKILL" in done.screen
    assert "all ranks start again (restart 1 of 1)" in done.screen


def test_arguments_arrive_as_they_were_written(launch: Launch, script: Script) -> None:
    path = script("import os, sys; print('RESULT', os.environ['RANK'], sys.argv[1:])")
    words = ["$$HOME", "${local_rank}", "a b", "--num_processes", "7", ""]
    done = launch("--num_processes", 2, path, *words)
    assert sorted(done.out.splitlines()) == [f"RESULT {rank} {words}" for rank in (0, 1)]
