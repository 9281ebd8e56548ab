"""Several processes on one machine or more, watched by torch's elastic agent."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import ClassVar

from accelerate.errors import LaunchError
from accelerate.launch.base import Job, Launcher, LaunchPlan, Rendezvous
from accelerate.launch.command import process_command
from accelerate.launch.shape import Shape, base_environment, shape_of

__all__ = ["TorchrunLauncher", "agent_plan", "parse_conf"]

_TEE = re.compile(r"[0-3]|\d+:[0-3](,\d+:[0-3])*")
DEFAULT_PORT = 29500


class TorchrunLauncher(Launcher):
    """Runs a job of several processes under torch's elastic agent, one agent for each machine."""

    name: ClassVar[str] = "torchrun"

    def accepts(self, job: Job) -> bool:
        shape = shape_of(job)
        return shape.world_size > 1 or shape.machines[1] > 1

    def plan(self, job: Job) -> LaunchPlan:
        return agent_plan(job, kind=self.name, argv=process_command(job))

    def run(self, plan: LaunchPlan) -> int:
        _check_port(plan)
        return _load_agent(own_process=plan.job.in_place)(plan)


def agent_plan(job: Job, *, kind: str, argv: tuple[str, ...]) -> LaunchPlan:
    """What torch's agent would start for ``job``, whatever ``argv`` stands for.

    Raises:
        LaunchError: the settings cannot be met together.
    """
    shape = shape_of(job)
    environment = base_environment(job, shape)
    rendezvous = rendezvous_of(job, shape)
    if rendezvous.backend == "c10d" and (rendezvous.max_restarts or shape.machines[0] != shape.machines[1]):
        # A restarted worker must not find the addresses of the attempt before it in the store it shares.
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    return LaunchPlan(
        kind=kind,
        argv=argv,
        environment=environment,
        nprocs=shape.nprocs,
        world_size=shape.world_size,
        machines=shape.machines,
        machine_rank=shape.machine_rank,
        device=shape.device,
        job=job,
        rendezvous=rendezvous,
        notices=shape.notices,
    )


def _load_agent(own_process: bool) -> Callable[[LaunchPlan], int]:
    """The agent's entry, with torch behind it.

    In a process that does nothing else, the collector is kept away from torch's objects while they are made and when
    the process ends, which takes more than a third off what the agent costs.
    """
    collecting = own_process and gc.isenabled()
    if collecting:
        gc.disable()
    try:
        from accelerate.launch.agent import run_command
    finally:
        if collecting:
            gc.freeze()
            gc.enable()
    return run_command


def _check_port(plan: LaunchPlan) -> None:
    """Raises LaunchError where this machine is to open a port that is taken."""
    from accelerate.launch import ports

    meeting = plan.rendezvous or Rendezvous()
    if plan.machine_rank == 0 and meeting.port and (plan.machines[1] == 1 or ports.is_this_machine(meeting.address)):
        ports.claim(meeting.port)


def rendezvous_of(job: Job, shape: Shape) -> Rendezvous:
    """Where and how the processes of ``job`` meet.

    ``static`` stands where every machine knows the first one's address and nothing ever starts again. Restarts and
    elastic jobs meet anew each time, and one machine needs no port agreed on: those go by ``c10d``, which torch's own
    static meeting cannot do.

    Raises:
        LaunchError: an address is missing, or a setting cannot be read.
    """
    config = job.config
    least, most = shape.machines
    if config.max_restarts < 0:
        raise LaunchError(f"--max_restarts {config.max_restarts} was asked for. It counts from 0.")
    if config.monitor_interval <= 0:
        raise LaunchError(f"--monitor_interval {config.monitor_interval} was asked for. It is a time above 0 seconds.")
    if not _TEE.fullmatch(config.tee):
        raise LaunchError(f"--tee {config.tee} was asked for. It takes 0 to 3, or such numbers by rank: 0:3,1:1.")
    if most > 1 and not config.main_process_ip:
        raise LaunchError(
            f"--num_machines {config.num_machines} was asked for without the address of the first machine. Give every "
            "machine the same --main_process_ip (and --main_process_port), and its own --machine_rank."
        )
    options = parse_conf(config.rdzv_conf)
    backend = config.rdzv_backend
    anew = config.max_restarts > 0 or least != most
    if backend == "static" and (anew or (most == 1 and not config.main_process_port)):
        backend = "c10d"
    if backend == "c10d" and least == most:
        options.setdefault("is_host", "true" if shape.machine_rank == 0 else "false")
    return Rendezvous(
        backend=backend,
        address=config.main_process_ip or "127.0.0.1",
        port=config.main_process_port or (DEFAULT_PORT if most > 1 else 0),
        options=options,
        local_address=None if most > 1 else "127.0.0.1",
        role=config.role,
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        tee=config.tee,
        log_dir=config.log_dir,
    )


def parse_conf(text: str) -> dict[str, str]:
    """The settings in ``k=v,k=v``.

    Raises:
        LaunchError: a part is not of that form.
    """
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, sign, value = (word.strip() for word in part.partition("="))
        if not (name and sign and value):
            raise LaunchError(f"--rdzv_conf {text!r} was given, of which {part!r} is not of the form name=value.")
        found[name] = value
    return found
