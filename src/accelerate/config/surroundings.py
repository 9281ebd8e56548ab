"""What Slurm, Kubernetes and MPI say in the environment about the machines of a job, as settings of a launch.

Each reader expects one ``accelerate launch`` for each machine. Where a scheduler started several on one machine, each
may be a job of its own, so nothing is derived.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from accelerate.cluster import MPI, hosts_of

__all__ = ["first_host", "read_surroundings"]

# By path of the setting: its value, and where it was read.
Found = dict[str, tuple[Any, str]]


def read_surroundings(environ: Mapping[str, str]) -> Found:
    """Machines, rank, address, port and processes that the surroundings of a launch give, each with its place.

    Empty on one machine, and inside a rank that a launcher started already.
    """
    if "LOCAL_RANK" in environ or "TORCHELASTIC_RUN_ID" in environ:
        return {}
    for reader in _READERS:
        found = reader(environ)
        if found:
            return found
    return {}


def first_host(nodes: str) -> str | None:
    """The first host of a Slurm node list such as ``gpu[007-009,12],login``; None for an empty list."""
    return next(iter(hosts_of(nodes.strip())), None)


def _number(environ: Mapping[str, str], name: str | None) -> int | None:
    text = environ.get(name, "") if name else ""
    return int(text) if text.isdigit() else None


def _meeting(environ: Mapping[str, str], prefix: str, who: str) -> Found:
    found: Found = {}
    if environ.get(f"{prefix}MASTER_ADDR"):
        found["main_process_ip"] = (environ[f"{prefix}MASTER_ADDR"], f"{who}: {prefix}MASTER_ADDR")
    port = _number(environ, f"{prefix}MASTER_PORT")
    if port is not None:
        found["main_process_port"] = (port, f"{who}: {prefix}MASTER_PORT")
    return found


def _slurm(environ: Mapping[str, str]) -> Found:
    # Only srun sets these: the batch script itself runs on the first machine alone, and the others would be missed.
    machines, tasks = _number(environ, "SLURM_STEP_NUM_NODES"), _number(environ, "SLURM_STEP_NUM_TASKS")
    rank = _number(environ, "SLURM_NODEID")
    if machines is None or machines < 2 or tasks != machines or rank is None:
        return {}
    found: Found = {
        "num_machines": (machines, "Slurm: SLURM_STEP_NUM_NODES"),
        "machine_rank": (rank, "Slurm: SLURM_NODEID"),
    }
    host = first_host(environ.get("SLURM_STEP_NODELIST", ""))
    if host:
        found["main_process_ip"] = (host, "Slurm: SLURM_STEP_NODELIST")
    job = _number(environ, "SLURM_JOB_ID")
    if job is not None:
        # Two jobs may share the first machine.
        found["main_process_port"] = (20000 + job % 10000, "Slurm: SLURM_JOB_ID")
    return {**found, **_meeting(environ, "", "Slurm")}


def _pet(environ: Mapping[str, str]) -> Found:
    who = "torchrun's environment"
    least, _, most = environ.get("PET_NNODES", "").partition(":")
    if not least.isdigit() or (most and not most.isdigit()) or int(most or least) < 2:
        return {}
    machines = (int(least), int(most)) if most and most != least else int(least)
    found: Found = {"num_machines": (machines, f"{who}: PET_NNODES")}
    rank = _number(environ, "PET_NODE_RANK")
    if rank is not None:
        found["machine_rank"] = (rank, f"{who}: PET_NODE_RANK")
    on_each = _number(environ, "PET_NPROC_PER_NODE")
    if on_each:
        found["num_processes"] = (on_each * int(most or least), f"{who}: PET_NPROC_PER_NODE")
    host, _, port = environ.get("PET_RDZV_ENDPOINT", "").rpartition(":")
    if host and port.isdigit():
        found["main_process_ip"] = (host.strip("[]"), f"{who}: PET_RDZV_ENDPOINT")
        found["main_process_port"] = (int(port), f"{who}: PET_RDZV_ENDPOINT")
    return {**found, **_meeting(environ, "", who), **_meeting(environ, "PET_", who)}


def _kubernetes(environ: Mapping[str, str]) -> Found:
    machines, rank = _number(environ, "WORLD_SIZE"), _number(environ, "RANK")
    if machines is None or machines < 2 or rank is None or not environ.get("MASTER_ADDR"):
        return {}
    who = "Kubernetes" if "KUBERNETES_SERVICE_HOST" in environ else "environment"
    return {
        "num_machines": (machines, f"{who}: WORLD_SIZE"),
        "machine_rank": (rank, f"{who}: RANK"),
        **_meeting(environ, "", who),
    }


def _mpi(environ: Mapping[str, str]) -> Found:
    for names in MPI:
        machines, number = _number(environ, names.size), _number(environ, names.rank)
        if machines is not None and machines > 1 and number is not None and _number(environ, names.local_size) == 1:
            return {
                "num_machines": (machines, f"MPI: {names.size}"),
                "machine_rank": (number, f"MPI: {names.rank}"),
                **_meeting(environ, "", "MPI"),
            }
    return {}


_READERS: tuple[Callable[[Mapping[str, str]], Found], ...] = (_pet, _kubernetes, _mpi, _slurm)
