"""Several processes on the hosts of an MPI host file, started by ``mpirun``."""

from __future__ import annotations

import os
from typing import ClassVar

from accelerate import env
from accelerate.errors import LaunchError
from accelerate.launch import report
from accelerate.launch.base import Job, Launcher, LaunchPlan, Rendezvous
from accelerate.launch.command import process_command
from accelerate.launch.shape import base_environment, shape_of

__all__ = ["MpiLauncher", "flavour_of", "mpirun_command"]

# How each kind of MPI spells: host file, processes in all, processes on a host, a variable of the environment.
_SPELLING = {
    "openmpi": ("--hostfile", "-n", "--npernode", "-x"),
    "intel": ("-f", "-n", "-ppn", "-genvlist"),
    "mpich": ("-f", "-n", "-ppn", "-genvlist"),
    "mvapich": ("-f", "-n", "-ppn", "-genvlist"),
}


class MpiLauncher(Launcher):
    """Runs a job on the hosts of ``mpirun_hostfile``; ``mpirun`` starts the ranks and gloo connects them."""

    name: ClassVar[str] = "mpi"

    def accepts(self, job: Job) -> bool:
        return job.config.mpi.hostfile is not None

    def plan(self, job: Job) -> LaunchPlan:
        shape = shape_of(job)
        config = job.config
        if shape.machines[0] != shape.machines[1]:
            raise LaunchError(
                f"--num_machines {config.num_machines} asks for an elastic job, which mpirun cannot start."
            )
        if config.max_restarts:
            raise LaunchError(f"--max_restarts {config.max_restarts} was asked for, but mpirun starts nothing again.")
        if shape.machines[1] > 1 and not config.main_process_ip:
            raise LaunchError(
                f"An MPI job on {shape.machines[1]} machines was asked for without --main_process_ip, the address "
                "of the host that rank 0 runs on."
            )
        meeting = Rendezvous(
            backend="mpi",
            address=config.main_process_ip or "127.0.0.1",
            port=config.main_process_port or 0,
            log_dir=config.log_dir,
        )
        return LaunchPlan(
            kind=self.name,
            argv=("mpirun", *process_command(job)),
            environment=base_environment(job, shape),
            nprocs=shape.nprocs,
            world_size=shape.world_size,
            machines=shape.machines,
            device=shape.device,
            job=job,
            rendezvous=meeting,
            notices=shape.notices,
        )

    def run(self, plan: LaunchPlan) -> int:
        import shutil
        import subprocess
        import tempfile

        from accelerate.launch import ports
        from accelerate.launch.child import run_child

        program = shutil.which("mpirun")
        if program is None:
            raise LaunchError("An MPI job was asked for, but there is no mpirun on the PATH. Install OpenMPI or MPICH.")
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
        meeting = plan.rendezvous or Rendezvous()
        values = {
            **plan.environment,
            "MASTER_ADDR": meeting.address,
            "MASTER_PORT": str(ports.claim(meeting.port) if ports.is_this_machine(meeting.address) else meeting.port),
        }
        folder = tempfile.mkdtemp(prefix="accelerate-mpi-", dir=meeting.log_dir)
        values[report.ERROR_FOLDER] = folder
        command = mpirun_command(plan, values, flavour=flavour_of(said), root=_is_root())
        merged = {name: value for name, value in {**env.snapshot(), **values}.items() if value is not None}
        return _show(plan, folder, run_child([program, *command[1:]], merged))


def mpirun_command(
    plan: LaunchPlan, values: dict[str, str | None], *, flavour: str, root: bool = False
) -> tuple[str, ...]:
    """The whole ``mpirun`` command line for ``plan``, as that kind of MPI spells it."""
    hosts, total, on_each, variable = _SPELLING[flavour]
    words = ["mpirun", hosts, plan.job.config.mpi.hostfile or ""] if plan.job.config.mpi.hostfile else ["mpirun"]
    words += [total, str(plan.world_size), on_each, str(plan.nprocs)]
    published = sorted(name for name, value in values.items() if value is not None)
    if variable == "-x":
        words += [word for name in published for word in ("-x", name)]
        words += ["--allow-run-as-root"] if root else []
    else:
        words += [variable, ",".join(published)]
    return (*words, *plan.argv[1:])


def flavour_of(version: str) -> str:
    """Which MPI wrote this answer to ``mpirun --version``.

    Raises:
        LaunchError: none that is known.
    """
    for word, flavour in (
        ("open mpi", "openmpi"),
        ("open-rte", "openmpi"),
        ("prrte", "openmpi"),
        ("intel", "intel"),
        ("mvapich", "mvapich"),
        ("hydra", "mpich"),
        ("mpich", "mpich"),
    ):
        if word in version.lower():
            return flavour
    first = (version.strip().splitlines() or ["nothing"])[0]
    raise LaunchError(f"mpirun --version answers {first!r}, which is none of OpenMPI, Intel MPI, MPICH and MVAPICH.")


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _show(plan: LaunchPlan, folder: str, code: int) -> int:
    """Shows the first record that ranks left in ``folder``, and returns the code to pass on."""
    import shutil

    failures = []
    for entry in sorted(os.listdir(folder)):
        path = os.path.join(folder, entry)
        record = report.load(path)
        if record is not None:
            failures.append(report.Failure(rank=record["rank"], code=1, time=record["time"], file=path, record=record))
    if failures:
        root, others = report.summarise(failures, plan.world_size, folder)
        report.show(root, plan.world_size, others=len(others), quiet=plan.job.config.quiet)
        return root.exit_code
    shutil.rmtree(folder, ignore_errors=True)
    if code:
        ended = report.Failure(rank=0, code=code)
        how = f"was ended by {ended.signal_name}" if code < 0 else f"ended with code {code}"
        report.say(f"\naccelerate launch: mpirun {how}.")
        return ended.exit_code
    return 0
