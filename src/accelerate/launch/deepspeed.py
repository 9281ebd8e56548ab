"""Several machines of a host file, started by DeepSpeed's own runner (pdsh, OpenMPI, MVAPICH, MPICH, Slurm …)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from accelerate import env
from accelerate.errors import LaunchError
from accelerate.launch import report
from accelerate.launch.base import Job, Launcher, LaunchPlan, Rendezvous
from accelerate.launch.shape import base_environment

__all__ = ["DeepSpeedLauncher", "exports"]

RUNNER = "deepspeed.launcher.runner"
_ENV_FILE, _USUAL = "DS_ENV_FILE", ".deepspeed_env"
DEFAULT_PORT = 29500


class DeepSpeedLauncher(Launcher):
    """Runs a DeepSpeed job on the hosts of a host file. ``standard`` is not this: there, the launch is started on
    every machine by hand, and torch's agent runs it."""

    name: ClassVar[str] = "deepspeed"

    def accepts(self, job: Job) -> bool:
        settings = job.config.deepspeed
        named = (
            settings.deepspeed_hostfile or settings.deepspeed_inclusion_filter or settings.deepspeed_exclusion_filter
        )
        remote = settings.deepspeed_multinode_launcher not in (None, "standard") and job.config.machine_range[1] > 1
        return job.config.use_deepspeed and bool(named or remote)

    def plan(self, job: Job) -> LaunchPlan:
        config, settings = job.config, job.config.deepspeed
        _check(job)
        machines = config.machine_range[1]
        total = config.num_processes if config.num_processes and config.num_processes > 0 else None
        if total is not None and total % machines:
            raise LaunchError(
                f"--num_processes {total} on --num_machines {machines} was asked for. --num_processes counts the "
                f"processes of all machines together, so it has to be a multiple of {machines}."
            )
        here = None if total is None else total // machines
        words = [sys.executable, "-m", RUNNER, "--no_local_rank"]
        if settings.deepspeed_hostfile:
            words += ["--hostfile", settings.deepspeed_hostfile]
        words += _where(job, here)
        words += _how(job)
        if config.main_process_ip:
            words += ["--master_addr", config.main_process_ip]
        words += ["--master_port", str(config.main_process_port or DEFAULT_PORT)]
        words += ["--module"] if job.module else []
        words += [] if job.python else ["--no_python"]
        return LaunchPlan(
            kind=self.name,
            argv=(*words, job.program, *job.arguments),
            environment=_published(job),
            nprocs=here or 1,
            world_size=total or machines,
            machines=(machines, machines),
            device=job.devices.type if job.devices.count and not config.cpu else "cpu",
            job=job,
            rendezvous=Rendezvous(
                backend=settings.deepspeed_multinode_launcher or "pdsh",
                address=config.main_process_ip or "",
                port=config.main_process_port or DEFAULT_PORT,
            ),
        )

    def run(self, plan: LaunchPlan) -> int:
        import tempfile

        from accelerate.launch.child import run_child
        from accelerate.optional import require

        require("deepspeed", "DeepSpeed's launcher")
        values = {**env.snapshot(), **plan.environment}
        merged = {name: value for name, value in values.items() if value is not None}
        own = [Path.home() / _USUAL, Path(_USUAL)]
        if merged.get(_ENV_FILE):
            own = [Path(merged[_ENV_FILE])]
        told = {name: value for name, value in plan.environment.items() if value is not None}
        # A file of this launch alone, which goes with it: what was published once must not reach every later job.
        handle, path = tempfile.mkstemp(prefix="accelerate-deepspeed-env-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(exports([text.read_text("utf-8") for text in own if text.is_file()], told))
            code = run_child(plan.argv, {**merged, _ENV_FILE: path})
        finally:
            os.unlink(path)
        if code:
            ended = report.Failure(rank=0, code=code)
            report.say(f"\naccelerate launch: DeepSpeed's runner ended with code {ended.exit_code}.")
            return ended.exit_code
        return 0


def exports(before: list[str], values: Mapping[str, str]) -> str:
    """The text of an environment file for the other machines: a user's own lines first, then ``values``, each
    variable once.

    Raises:
        LaunchError: a value has a line break, which such a file cannot hold.
    """
    found: dict[str, str] = {}
    for text in before:
        for line in text.splitlines():
            name, sign, value = line.partition("=")
            if sign and name.strip():
                found[name.strip()] = value
    for name, value in values.items():
        if "\n" in value:
            raise LaunchError(
                f"{name} holds a line break, which DeepSpeed's environment file cannot carry to other machines. Write "
                "the value on one line."
            )
        found[name] = value
    return "".join(f"{name}={value}\n" for name, value in sorted(found.items()))


def _check(job: Job) -> None:
    config, settings = job.config, job.config.deepspeed
    if settings.deepspeed_multinode_launcher == "standard":
        raise LaunchError(
            "--deepspeed_multinode_launcher standard was asked for together with a host file or a filter of hosts. "
            "standard reads none: leave them out and start the launch on every machine with its --machine_rank, or "
            "choose pdsh."
        )
    if settings.deepspeed_inclusion_filter and settings.deepspeed_exclusion_filter:
        raise LaunchError(
            f"--deepspeed_inclusion_filter {settings.deepspeed_inclusion_filter} and --deepspeed_exclusion_filter "
            f"{settings.deepspeed_exclusion_filter} were both given. DeepSpeed takes one of them."
        )
    if config.machine_range[0] != config.machine_range[1] or config.max_restarts:
        raise LaunchError(
            f"--num_machines {config.num_machines} with --max_restarts {config.max_restarts} asks for an elastic job, "
            "which DeepSpeed's runner cannot start. Use --deepspeed_multinode_launcher standard."
        )


def _where(job: Job, here: int | None) -> list[str]:
    """Which hosts and how many of their slots."""
    settings = job.config.deepspeed
    if settings.deepspeed_inclusion_filter:
        return ["--include", settings.deepspeed_inclusion_filter]
    if settings.deepspeed_exclusion_filter:
        return ["--exclude", settings.deepspeed_exclusion_filter]
    words = ["--num_nodes", str(job.config.machine_range[1])] if "num_machines" in job.given else []
    return words if here is None else [*words, "--num_gpus", str(here)]


def _how(job: Job) -> list[str]:
    launcher = job.config.deepspeed.deepspeed_multinode_launcher or "pdsh"
    if launcher == "nossh":
        return ["--no_ssh", "--node_rank", str(job.config.machine_rank)]
    return ["--launcher", launcher]


def _published(job: Job) -> dict[str, str | None]:
    """What every process finds in its environment; device numbers are the host file's business."""
    from accelerate.launch.shape import Shape

    alone = Shape(
        world_size=1, nprocs=1, machines=(1, 1), machine_rank=0, device="cpu", visible=None, notices=()
    )  # fmt: skip
    return base_environment(job, alone)
