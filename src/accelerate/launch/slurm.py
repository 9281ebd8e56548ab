"""A job on the machines of a Slurm cluster, submitted with ``sbatch``."""

from __future__ import annotations

import shlex
import sys
from pathlib import PurePath
from typing import ClassVar

from accelerate.config.run import all_settings
from accelerate.env import encode
from accelerate.errors import LaunchError
from accelerate.launch.base import Job, Launcher, LaunchPlan

__all__ = ["SlurmLauncher", "batch_script"]

# What the script says itself, or what ends here.
_NOT_PASSED_ON = frozenset(
    {"engine", "dry_run", "num_machines", "machine_rank", "main_process_ip", "main_process_port"}
)


class SlurmLauncher(Launcher):
    """Submits a batch script that starts one ``accelerate launch`` on each machine. Only for ``--engine slurm``.

    Account, partition and time limit are sbatch's own variables (``SBATCH_ACCOUNT``, ``SBATCH_PARTITION``,
    ``SBATCH_TIMELIMIT``). Devices are counted on the machines of the job, not on the one that submits.
    """

    name: ClassVar[str] = "slurm"

    def accepts(self, job: Job) -> bool:
        return False

    def plan(self, job: Job) -> LaunchPlan:
        config = job.config
        least, most = config.machine_range
        total = config.num_processes
        if least != most:
            raise LaunchError(
                f"--num_machines {least}:{most} was asked for with --engine slurm, but a Slurm job keeps the machines "
                f"it started with. Ask for one number, such as {most}."
            )
        if least < 1 or (total is not None and (total == 0 or total < -1)):
            raise LaunchError(
                f"--num_machines {least} and --num_processes {total} were asked for. A job has at least one of each."
            )
        known = total if total is not None and total > 0 else None
        if known is not None and known % most:
            raise LaunchError(
                f"--num_processes {known} on --num_machines {most} was asked for. --num_processes counts the processes "
                f"of all machines together, so it has to be a multiple of {most}."
            )
        environment: dict[str, str | None] = {**job.environment, "ACCELERATE_ENGINE": None}
        if config.distributed_type == "MULTI_CPU":
            environment["ACCELERATE_USE_CPU"] = "true"
        on_each = None if known is None else known // most
        return LaunchPlan(
            kind=self.name,
            argv=("sbatch",),
            environment=environment,
            nprocs=on_each or 1,
            world_size=known or most,
            machines=(most, most),
            device="cuda" if _wants_gpus(job) else "cpu",
            job=job,
            notices=()
            if known is not None
            else ("Without --num_processes, each machine starts one process for each of its devices.",),
            script=batch_script(job, environment, machines=most, on_each=on_each),
        )

    def run(self, plan: LaunchPlan) -> int:
        import shutil
        import subprocess

        program = shutil.which("sbatch")
        if program is None:
            sys.stdout.write(plan.script or "")
            sys.stdout.flush()
            raise LaunchError(
                "--engine slurm was asked for, but there is no sbatch on the PATH of this machine. The batch script is "
                "printed above: submit it where sbatch is, or leave --engine out to start the job here."
            )
        return subprocess.run([program], input=plan.script, text=True, check=False).returncode


def _wants_gpus(job: Job) -> bool:
    config = job.config
    return not config.cpu and (config.multi_gpu or config.distributed_type == "MULTI_GPU")


def batch_script(
    job: Job, environment: dict[str, str | None], *, machines: int, on_each: int | None, python: str = sys.executable
) -> str:
    """The text that sbatch takes: resources, the environment, and one launch on each machine."""
    config = job.config
    cpus = None if on_each is None else on_each * max(1, config.num_cpu_threads_per_process or 1)
    name = PurePath(job.program).stem or "accelerate"
    lines = ["#!/bin/bash", f"#SBATCH --job-name={shlex.quote(name)}", f"#SBATCH --nodes={machines}"]
    lines.append("#SBATCH --ntasks-per-node=1")
    lines += [f"#SBATCH --cpus-per-task={cpus}"] if cpus else []
    lines += [f"#SBATCH --gpus-per-node={on_each}"] if on_each and _wants_gpus(job) else []
    lines += [f"#SBATCH --output={shlex.quote(config.log_dir + '/%x-%j.out')}"] if config.log_dir else []
    lines += ["", "set -euo pipefail"]
    for variable, value in sorted(environment.items()):
        lines.append(f"unset {variable}" if value is None else f"export {variable}={shlex.quote(value)}")
    port = config.main_process_port or "$((20000 + SLURM_JOB_ID % 10000))"
    lines += [
        'read -r FIRST < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        f'export FIRST PORT="{port}"',
        "",
    ]
    words = [*_flags(job), job.program, *job.arguments]
    meeting = '--machine_rank "$SLURM_NODEID" --main_process_ip "$FIRST" --main_process_port "$PORT"'
    where = f"--engine torchrun --num_machines {machines}" + (f" {meeting}" if machines > 1 else "")
    inner = f"exec {shlex.quote(python)} -m accelerate.cli.launch {where} {shlex.join(words)}"
    step = "srun --ntasks-per-node=1 --kill-on-bad-exit=1" + (f" --cpus-per-task={cpus}" if cpus else "")
    return "\n".join([*lines, f"{step} bash -c {shlex.quote(inner)}", ""])


def _flags(job: Job) -> list[str]:
    """The settings that somebody set and that no variable carries, as flags."""
    words = []
    for item in all_settings():
        if item.path not in job.given or item.environment or not item.flag:
            continue
        value = getattr(job.config, item.path, None)
        if "." in item.path or item.path in _NOT_PASSED_ON or value is None or value is False:
            continue
        words += [item.flag] if value is True else [item.flag, encode(value)]
    return words
