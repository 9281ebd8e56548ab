"""What each launcher's variables say, and what is said where they say too little."""

from __future__ import annotations

import pytest

from accelerate.errors import TopologyError
from accelerate.topology import Topology


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> object:
    def put(**names: object) -> Topology:
        for name, value in names.items():
            monkeypatch.setenv(name, str(value))
        return Topology.detect()

    return put


def test_nothing_is_one_process(launched) -> None:
    found = launched()
    assert found == Topology()
    assert not found.distributed
    assert found.is_main and found.is_local_main and found.is_last


def test_torchrun_on_the_second_of_two_machines(launched) -> None:
    found = launched(
        RANK=5, WORLD_SIZE=6, LOCAL_RANK=2, LOCAL_WORLD_SIZE=3, GROUP_RANK=1, MASTER_ADDR="10.0.0.1", MASTER_PORT=1234
    )
    assert found == Topology(
        rank=5,
        world_size=6,
        local_rank=2,
        local_world_size=3,
        node_rank=1,
        num_nodes=2,
        source="torchrun",
        master_addr="10.0.0.1",
        master_port=1234,
    )
    assert found.is_last and not found.is_main and not found.is_local_main


def test_ranks_without_local_ranks_are_on_one_machine(launched) -> None:
    found = launched(RANK=1, WORLD_SIZE=2)
    assert (found.local_rank, found.local_world_size, found.num_nodes) == (1, 2, 1)


def test_a_launched_single_process_is_a_job_of_its_own(launched) -> None:
    found = launched(RANK=0, WORLD_SIZE=1, LOCAL_RANK=0)
    assert found.distributed and found.world_size == 1


def test_minus_one_and_empty_are_unset(launched) -> None:
    assert launched(LOCAL_RANK=-1, RANK="", WORLD_SIZE="") == Topology()


def test_leftovers_of_a_launcher_do_not_make_a_job(launched) -> None:
    assert launched(LOCAL_WORLD_SIZE=2, GROUP_RANK=0, MASTER_ADDR="127.0.0.1", MASTER_PORT=29500) == Topology()


@pytest.mark.parametrize(
    ("names", "named"),
    [
        ({"WORLD_SIZE": 2}, ["WORLD_SIZE=2", "RANK is not set"]),
        ({"RANK": 0}, ["RANK=0", "WORLD_SIZE is not set"]),
        ({"RANK": 2, "WORLD_SIZE": 2}, ["RANK=2", "WORLD_SIZE=2"]),
        ({"RANK": 0, "WORLD_SIZE": 0}, ["WORLD_SIZE=0"]),
        ({"LOCAL_RANK": 1}, ["LOCAL_RANK=1", "RANK and WORLD_SIZE"]),
        ({"RANK": "one", "WORLD_SIZE": 2}, ["RANK='one'", "whole number"]),
        ({"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 3, "LOCAL_WORLD_SIZE": 2}, ["LOCAL_RANK=3", "LOCAL_WORLD_SIZE=2"]),
        ({"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 4}, ["LOCAL_WORLD_SIZE=4", "WORLD_SIZE=2"]),
        ({"OMPI_COMM_WORLD_RANK": 1}, ["OMPI_COMM_WORLD_RANK is set", "OMPI_COMM_WORLD_SIZE is not"]),
        ({"PMI_SIZE": 2}, ["PMI_SIZE is set", "PMI_RANK is not"]),
        ({"RANK": 0, "WORLD_SIZE": 1, "PMI_RANK": 1, "PMI_SIZE": 2}, ["WORLD_SIZE=1", "mpi started 2"]),
        (
            {"RANK": 0, "WORLD_SIZE": 1, "SLURM_PROCID": 1, "SLURM_STEP_NUM_TASKS": 2},
            ["WORLD_SIZE=1", "slurm started 2"],
        ),
    ],
)
def test_too_little_or_contradictory(launched, names: dict[str, object], named: list[str]) -> None:
    with pytest.raises(TopologyError) as caught:
        launched(**names)
    for part in named:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("rank", "size", "local_rank", "local_size"),
    [
        (
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ),
        ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ],
)
def test_every_mpi(launched, rank: str, size: str, local_rank: str, local_size: str) -> None:
    found = launched(**{rank: 3, size: 4, local_rank: 1, local_size: 2, "MASTER_ADDR": "head"})
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == (3, 4, 1, 2)
    assert (found.node_rank, found.num_nodes, found.source) == (1, 2, "mpi")
    assert (found.master_addr, found.master_port) == ("head", 29500)


def test_mpi_on_one_machine_meets_there(launched) -> None:
    assert launched(PMI_RANK=1, PMI_SIZE=2, MPI_LOCALRANKID=1, MPI_LOCALNRANKS=2).master_addr == "127.0.0.1"


def test_mpi_on_several_machines_does_not_guess_the_address(launched) -> None:
    assert launched(PMI_RANK=1, PMI_SIZE=2, MPI_LOCALRANKID=0, MPI_LOCALNRANKS=1).master_addr is None


def test_mpi_with_one_process_is_no_job(launched) -> None:
    assert launched(OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=1) == Topology()


def test_mpi_says_the_rank_where_world_size_is_set_alone(launched) -> None:
    assert launched(WORLD_SIZE=2, PMI_RANK=1, PMI_SIZE=2).rank == 1


def test_a_slurm_step(launched) -> None:
    found = launched(
        SLURM_PROCID=3,
        SLURM_STEP_NUM_TASKS=5,
        SLURM_STEP_NUM_NODES=2,
        SLURM_NODEID=1,
        SLURM_LOCALID=0,
        SLURM_STEP_TASKS_PER_NODE="3,2",
        SLURM_STEP_NODELIST="gpu[07-09],login",
        SLURM_JOB_ID=77,
        SLURM_STEP_ID=2,
    )
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == (3, 5, 0, 2)
    assert (found.node_rank, found.num_nodes, found.source, found.master_addr) == (1, 2, "slurm", "gpu07")
    assert found.master_port == 20000 + 77 * 31 + 2


@pytest.mark.parametrize("tasks", [{}, {"SLURM_STEP_NUM_TASKS": 1}])
def test_a_batch_script_or_a_shell_of_slurm_is_no_job(launched, tasks: dict[str, int]) -> None:
    assert launched(SLURM_PROCID=0, SLURM_NTASKS=8, SLURM_NNODES=2, **tasks) == Topology()


def test_torchrun_inside_slurm_or_mpi_wins(launched) -> None:
    found = launched(RANK=3, WORLD_SIZE=4, LOCAL_RANK=1, LOCAL_WORLD_SIZE=2, SLURM_PROCID=1, SLURM_STEP_NUM_TASKS=2)
    assert (found.rank, found.world_size, found.source) == (3, 4, "torchrun")


def test_a_group_in_use_and_the_environment_have_to_agree(launched) -> None:
    assert Topology.of_group(1, 2).source == "group"
    launched(RANK=1, WORLD_SIZE=2, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1)
    assert Topology.of_group(1, 2).num_nodes == 2
    with pytest.raises(TopologyError, match="rank 0 of 1, the environment .torchrun. says rank 1 of 2"):
        Topology.of_group(0, 1)
