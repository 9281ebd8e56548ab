"""Machines, rank and address as Slurm, Kubernetes and MPI say them, and what goes before them."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelerate.config.resolve import resolve
from accelerate.config.surroundings import first_host, read_surroundings

SLURM = {
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NODELIST": "gpu[007-008,12]",
}
KUBERNETES = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "MASTER_ADDR": "job-master-0",
    "MASTER_PORT": "23456",
    "WORLD_SIZE": "2",
    "RANK": "1",
}
OPENMPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}


def values(environ: dict[str, str]) -> dict[str, object]:
    return {path: value for path, (value, _) in read_surroundings(environ).items()}


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("gpu[007-009,12],login", "gpu007"),
        ("a1,a2", "a1"),
        ("one", "one"),
        ("rack-[1,3]-ib,x", "rack-1-ib"),
        ("", None),
    ],
)
def test_the_first_host_of_a_node_list(nodes: str, host: str | None) -> None:
    assert first_host(nodes) == host


def test_slurm() -> None:
    expected = {"num_machines": 3, "machine_rank": 2, "main_process_ip": "gpu007", "main_process_port": 23456}
    assert values(SLURM) == expected
    assert values({**SLURM, "MASTER_ADDR": "10.1.1.1", "MASTER_PORT": "4"}) == {
        **expected,
        "main_process_ip": "10.1.1.1",
        "main_process_port": 4,
    }


def test_kubernetes() -> None:
    assert values(KUBERNETES) == {
        "num_machines": 2,
        "machine_rank": 1,
        "main_process_ip": "job-master-0",
        "main_process_port": 23456,
    }


def test_torchrun_variables_go_before_the_plain_ones() -> None:
    pet = {"PET_NNODES": "2:4", "PET_NODE_RANK": "3", "PET_NPROC_PER_NODE": "8", "PET_RDZV_ENDPOINT": "[::1]:77"}
    expected = {"num_machines": (2, 4), "machine_rank": 3, "num_processes": 32}
    assert values(pet) == {**expected, "main_process_ip": "::1", "main_process_port": 77}
    both = values({**KUBERNETES, **pet})
    assert both == {**expected, "main_process_ip": "job-master-0", "main_process_port": 23456}
    assert "num_processes" not in values({**pet, "PET_NPROC_PER_NODE": "auto"})


@pytest.mark.parametrize(
    "environ",
    [
        OPENMPI,
        {"MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_LOCAL_SIZE": "1"},
        {"PMI_SIZE": "2", "PMI_RANK": "1", "MPI_LOCALNRANKS": "1"},
    ],
)
def test_mpi(environ: dict[str, str]) -> None:
    assert values(environ) == {"num_machines": 2, "machine_rank": 1}
    assert values({**environ, "MASTER_ADDR": "h"})["main_process_ip"] == "h"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {**SLURM, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"},
        {**SLURM, "SLURM_STEP_NUM_TASKS": "6"},
        {"SLURM_JOB_ID": "1", "SLURM_NNODES": "2", "SLURM_NODEID": "0", "SLURM_NODELIST": "a,b"},
        {**KUBERNETES, "LOCAL_RANK": "0"},
        {**KUBERNETES, "WORLD_SIZE": "1", "RANK": "0"},
        {**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
        {"PET_NNODES": "1"},
    ],
)
def test_nothing_is_derived(environ: dict[str, str]) -> None:
    assert read_surroundings(environ) == {}


def test_a_file_goes_before_the_scheduler_and_the_origin_is_told(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("main_process_ip: 10.9.9.9\n")
    resolved = resolve(None, SLURM, file)
    config = resolved.config
    assert (config.num_machines, config.machine_rank, config.main_process_ip) == (3, 2, "10.9.9.9")
    told = dict(resolved.explain())
    assert told["machine_rank"].where == "Slurm: SLURM_NODEID"
    assert [str(other) for other in told["main_process_ip"].overrides] == ["gpu007 (Slurm: SLURM_STEP_NODELIST)"]
