"""Jobs on the hosts of an MPI host file."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from accelerate.errors import LaunchError
from accelerate.launch.base import LaunchPlan
from accelerate.launch.command import WORKER
from accelerate.launch.mpi import flavour_of, mpirun_command

Planned = Callable[..., LaunchPlan]

FILE = """
distributed_type: MULTI_CPU
mpirun_config:
  mpirun_hostfile: /etc/hosts.mpi
num_machines: 4
num_processes: 16
main_process_ip: 10.0.0.1
main_process_port: 29500
use_cpu: true
"""


def test_a_host_file_makes_an_mpi_job(planned: Planned) -> None:
    plan = planned("train.py --x", yaml=FILE)
    assert (plan.kind, plan.world_size, plan.nprocs, plan.machines) == ("mpi", 16, 4, (4, 4))
    assert plan.environment["ACCELERATE_USE_CPU"] == "true"
    assert plan.environment["OMP_NUM_THREADS"] == "2"
    assert plan.argv == ("mpirun", sys.executable, "-u", WORKER, "train.py", "--x")
    assert plan.rendezvous is not None and plan.rendezvous.endpoint == "10.0.0.1:29500"


@pytest.mark.parametrize(
    ("flavour", "expected"),
    [
        (
            "openmpi",
            ["--hostfile", "/etc/hosts.mpi", "-n", "16", "--npernode", "4", "-x", "A", "-x", "B"],
        ),
        ("mpich", ["-f", "/etc/hosts.mpi", "-n", "16", "-ppn", "4", "-genvlist", "A,B"]),
        ("intel", ["-f", "/etc/hosts.mpi", "-n", "16", "-ppn", "4", "-genvlist", "A,B"]),
        ("mvapich", ["-f", "/etc/hosts.mpi", "-n", "16", "-ppn", "4", "-genvlist", "A,B"]),
    ],
)
def test_each_mpi_is_spelt_its_own_way(planned: Planned, flavour: str, expected: list[str]) -> None:
    plan = planned("train.py", yaml=FILE)
    command = mpirun_command(plan, {"B": "2", "A": "1", "gone": None}, flavour=flavour)
    assert list(command) == ["mpirun", *expected, sys.executable, "-u", WORKER, "train.py"]


def test_openmpi_lets_root_run(planned: Planned) -> None:
    plan = planned("train.py", yaml=FILE)
    assert "--allow-run-as-root" in mpirun_command(plan, {}, flavour="openmpi", root=True)
    assert "--allow-run-as-root" not in mpirun_command(plan, {}, flavour="mpich", root=True)


@pytest.mark.parametrize(
    ("said", "flavour"),
    [
        ("mpirun (Open MPI) 4.1.4\n", "openmpi"),
        ("mpirun (PRRTE) 3.0.2", "openmpi"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.11", "intel"),
        ("HYDRA build details:\n    Version: 4.0.2", "mpich"),
    ],
)
def test_an_mpi_is_known_by_what_it_says(said: str, flavour: str) -> None:
    assert flavour_of(said) == flavour


def test_an_unknown_mpi_is_an_error() -> None:
    with pytest.raises(LaunchError, match="answers 'Foo 1'"):
        flavour_of("Foo 1\nbar")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--mpirun_hostfile h --num_processes 4 --num_machines 2 x.py", "without --main_process_ip"),
        ("--mpirun_hostfile h --num_processes 4 --max_restarts 1 x.py", "starts nothing again"),
        ("--mpirun_hostfile h --num_processes 4 --num_machines 1:2 --main_process_ip h x.py", "elastic"),
    ],
)
def test_what_mpirun_cannot_do_is_an_error(planned: Planned, words: str, says: str) -> None:
    with pytest.raises(LaunchError, match=says):
        planned(words)
