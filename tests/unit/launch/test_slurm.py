"""The batch script of a Slurm job, and what happens with and without sbatch."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from accelerate.errors import LaunchError
from accelerate.launch.base import LaunchPlan
from accelerate.launch.slurm import SlurmLauncher

Planned = Callable[..., LaunchPlan]
LINE = "--engine slurm --cpu --num_machines 2 --num_processes 4 --max_restarts 1 train.py --name x"


def test_two_machines_golden(planned: Planned) -> None:
    plan = planned(LINE)
    assert (plan.kind, plan.argv, plan.world_size, plan.nprocs, plan.machines) == ("slurm", ("sbatch",), 4, 2, (2, 2))
    inner = (
        f"exec {sys.executable} -m accelerate.cli.launch --engine torchrun --num_machines 2 "
        '--machine_rank "$SLURM_NODEID" --main_process_ip "$FIRST" --main_process_port "$PORT" '
        "--max_restarts 1 train.py --name x"
    )
    assert plan.script == (
        "#!/bin/bash\n"
        "#SBATCH --job-name=train\n"
        "#SBATCH --nodes=2\n"
        "#SBATCH --ntasks-per-node=1\n"
        "#SBATCH --cpus-per-task=2\n"
        "\n"
        "set -euo pipefail\n"
        "unset ACCELERATE_ENGINE\n"
        "export ACCELERATE_NUM_PROCESSES=4\n"
        "export ACCELERATE_USE_CPU=true\n"
        'read -r FIRST < <(scontrol show hostnames "$SLURM_JOB_NODELIST")\n'
        'export FIRST PORT="$((20000 + SLURM_JOB_ID % 10000))"\n'
        "\n"
        f"srun --ntasks-per-node=1 --kill-on-bad-exit=1 --cpus-per-task=2 bash -c {shlex.quote(inner)}\n"
    )
    assert plan.as_dict()["script"] == plan.script


def test_devices_are_asked_of_slurm_and_not_counted_here(planned: Planned) -> None:
    script = planned("--engine slurm --multi_gpu --num_machines 2 --num_processes 16 train.py").script
    assert script is not None and "#SBATCH --gpus-per-node=8\n" in script
    script = planned("--engine slurm --multi_gpu --log_dir logs train.py").script
    assert script is not None and "gpus-per-node" not in script and "#SBATCH --output=logs/%x-%j.out\n" in script


@pytest.mark.parametrize(
    ("words", "says"),
    [("--num_machines 2:4", "keeps the machines"), ("--num_machines 2 --num_processes 3", "multiple of 2")],
)
def test_what_slurm_cannot_have(planned: Planned, words: str, says: str) -> None:
    with pytest.raises(LaunchError, match=says):
        planned(f"--engine slurm {words} train.py")


def test_without_sbatch_the_script_is_printed(
    planned: Planned, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    plan = planned(LINE)
    with pytest.raises(LaunchError, match="no sbatch on the PATH"):
        SlurmLauncher().run(plan)
    assert capsys.readouterr().out == plan.script


def _tool(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/bash\n{body}\n")
    (folder / name).chmod(0o755)


def test_sbatch_gets_the_script_and_each_machine_its_own_words(
    planned: Planned, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Tools that stand for Slurm's run the script on two pretended machines; it has to be a program, not only text."""
    _tool(tmp_path, "sbatch", "export SLURM_JOB_ID=12345 SLURM_JOB_NODELIST='n[1-2]'; bash -s")
    _tool(tmp_path, "scontrol", "echo n1; echo n2")
    _tool(tmp_path, "srun", 'while [[ $1 == --* ]]; do shift; done; for n in 0 1; do SLURM_NODEID=$n "$@"; done')
    _tool(tmp_path, "python", f'printf "%s|" "$@" >> {tmp_path}/seen; echo >> {tmp_path}/seen; exit 0')
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    plan = planned(["--engine", "slurm", "--num_machines", "2", "--num_processes", "2", "train.py", "it's $HOME"])
    assert plan.script is not None
    script = plan.script.replace(sys.executable, str(tmp_path / "python"))
    subprocess.run(["sbatch"], input=script, text=True, check=True)
    common = "-m|accelerate.cli.launch|--engine|torchrun|--num_machines|2|--machine_rank|{}|--main_process_ip|n1|"
    rest = "--main_process_port|22345|train.py|it's $HOME|"
    assert (tmp_path / "seen").read_text().splitlines() == [common.format(rank) + rest for rank in (0, 1)]
    _tool(tmp_path, "sbatch", "exit 3")
    assert SlurmLauncher().run(plan) == 3
