"""The seam for a way of starting processes.

A :class:`Job` says what is to run and with which configuration; the first launcher that accepts it turns it into a
:class:`LaunchPlan`, which is data only; running the plan is the one part that touches the system.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from accelerate.launch.hardware import NO_DEVICES, Devices

if TYPE_CHECKING:
    from accelerate.config.run import RunConfig

__all__ = ["Job", "LaunchPlan", "Launcher", "Rendezvous"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be started.

    ``program`` is a script, a module (``module``) or a command (``python`` False). ``environment`` is what the
    configuration publishes to the processes (None removes a variable). ``given`` says, by path, where each setting that
    somebody set was set, so that a default is not mistaken for a wish. ``in_place`` says whether the calling process
    may become the program. ``environ`` is the environment the job starts in.
    """

    config: RunConfig
    program: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    python: bool = True
    environment: Mapping[str, str | None] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    in_place: bool = False
    devices: Devices = NO_DEVICES
    cores: int = 1
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """How the processes of several agents, or of one, find each other, and how an agent watches its own.

    ``port`` 0 stands for any free one, which the launcher takes when it runs.
    """

    backend: str = "static"
    address: str = "127.0.0.1"
    port: int = 0
    options: Mapping[str, str] = field(default_factory=dict)
    local_address: str | None = None
    run_id: str = "accelerate"
    role: str = "default"
    max_restarts: int = 0
    monitor_interval: float = 0.1
    tee: str = "0"
    log_dir: str | None = None

    @property
    def endpoint(self) -> str:
        """Address and port as the agent takes them."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """What will be started: the command of one process, what its environment gets, and how many there are.

    ``nprocs`` counts the processes of this machine, ``world_size`` those of the job. A value of None in
    ``environment`` removes the variable. ``notices`` say where what happens differs from what was asked. ``script`` is
    what the command reads, where it reads one.
    """

    kind: str
    argv: tuple[str, ...]
    environment: Mapping[str, str | None] = field(default_factory=dict)
    nprocs: int = 1
    world_size: int = 1
    machines: tuple[int, int] = (1, 1)
    machine_rank: int = 0
    device: str = "cpu"
    job: Job
    rendezvous: Rendezvous | None = None
    notices: tuple[str, ...] = ()
    script: str | None = None

    @property
    def description(self) -> str:
        """One line for a person: how many processes, where, started how."""
        what = f"{self.world_size} process{'es' * (self.world_size > 1)} on {self.device}"
        least, most = self.machines
        if most > 1:
            many = str(most) if least == most else f"{least} to {most}"
            what += f", {self.nprocs} on each of {many} machines, this is number {self.machine_rank}"
        return f"{what}, started by {self.kind}: {shlex.join(self.argv)}"

    def as_dict(self) -> dict[str, Any]:
        """The plan without the job it was made from, for printing and for golden tests."""
        named = {name: getattr(self.rendezvous, name) for name in Rendezvous.__slots__} if self.rendezvous else None
        script = {} if self.script is None else {"script": self.script}
        return {
            "kind": self.kind,
            "argv": list(self.argv),
            "environment": dict(sorted(self.environment.items())),
            "nprocs": self.nprocs,
            "world_size": self.world_size,
            "machines": list(self.machines),
            "machine_rank": self.machine_rank,
            "device": self.device,
            "rendezvous": named,
            "notices": list(self.notices),
            **script,
        }


class Launcher(ABC):
    """One way of starting processes. A user's own derives from this and is registered by entry point (group
    ``accelerate.launchers``) or by :func:`accelerate.launch.registry.register`."""

    name: ClassVar[str]

    @abstractmethod
    def accepts(self, job: Job) -> bool:
        """Whether this launcher is the one for ``job``. The first that accepts it gets it."""

    @abstractmethod
    def plan(self, job: Job) -> LaunchPlan:
        """What would be started. Pure: the same job gives the same plan, and nothing is touched.

        Raises:
            LaunchError: the settings cannot be met together.
            NotBuiltError: they ask for something that is not there yet.
        """

    @abstractmethod
    def run(self, plan: LaunchPlan) -> int:
        """Starts the processes, waits for them, shows a failure once, and returns the exit code to pass on."""
