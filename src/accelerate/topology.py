"""Ranks and sizes of the job this process is part of."""

from __future__ import annotations

import re
from dataclasses import dataclass

from accelerate import env
from accelerate.cluster import MPI, MpiNames, hosts_of
from accelerate.errors import TopologyError

__all__ = ["Topology"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Where this process stands in its job. ``source`` says who told: "torchrun", "mpi", "slurm" or "none"."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    num_nodes: int = 1
    source: str = "none"
    master_addr: str | None = None
    master_port: int | None = None

    @property
    def distributed(self) -> bool:
        """Whether a launcher set up a group, also one of a single process."""
        return self.source != "none"

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0 of the job."""
        return self.rank == 0

    @property
    def is_local_main(self) -> bool:
        """Whether this is rank 0 of its machine."""
        return self.local_rank == 0

    @property
    def is_last(self) -> bool:
        """Whether this is the last rank of the job."""
        return self.rank == self.world_size - 1

    @classmethod
    def detect(cls) -> Topology:
        """What the launcher wrote into the environment: torchrun's variables, else MPI's or Slurm's; else one process.

        Raises:
            TopologyError: variables are missing, contradict each other or cannot be read; they are named. Several
                processes never become several jobs of one in silence.
        """
        explicit = _from_torchrun()
        around = _from_mpi() or _from_slurm()
        if explicit is None:
            return around or cls()
        if explicit.world_size == 1 and around is not None:
            raise TopologyError(
                f"RANK={explicit.rank} and WORLD_SIZE=1 describe a job of one process, but {around.source} started "
                f"{around.world_size} of them (this is number {around.rank}): they would train apart from each other. "
                "Unset RANK and WORLD_SIZE to form one group, or start a single process."
            )
        return explicit

    @classmethod
    def of_group(cls, rank: int, world_size: int) -> Topology:
        """The place of a process in a group that exists already; local ranks come from the environment if it agrees.

        Raises:
            TopologyError: the environment describes another place.
        """
        told = cls.detect()
        if told.source == "none":
            return cls(rank=rank, world_size=world_size, local_rank=rank, local_world_size=world_size, source="group")
        if (told.rank, told.world_size) != (rank, world_size):
            raise TopologyError(
                f"The process group in use says rank {rank} of {world_size}, the environment ({told.source}) says rank "
                f"{told.rank} of {told.world_size}. Initialise the group with the launcher's ranks, or unset RANK and "
                "WORLD_SIZE where the launcher is not to be used."
            )
        return told


def _number(name: str) -> int | None:
    """The whole number in a variable; None where it is unset, empty or -1."""
    text = env.get(name)
    if not text:
        return None
    try:
        value = int(text)
    except ValueError:
        raise TopologyError(
            f"{name}={text!r} has to be a whole number: it says which process of the job this is."
        ) from None
    return None if value < 0 else value


def _check(rank: int, size: int, rank_name: str, size_name: str) -> None:
    if size < 1 or rank >= size:
        raise TopologyError(
            f"{rank_name}={rank} and {size_name}={size} contradict each other: ranks go from 0 to {size_name} - 1. "
            "Start the job with `accelerate launch` or torchrun, or correct these variables."
        )


def _rendezvous() -> tuple[str | None, int | None]:
    return env.get("MASTER_ADDR") or None, _number("MASTER_PORT")


def _from_torchrun() -> Topology | None:
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    local_rank = _number("LOCAL_RANK")
    if rank is None:
        if size is not None and size > 1 and not _around():
            raise TopologyError(
                f"WORLD_SIZE={size} asks for {size} processes, but RANK is not set, so this process does not know "
                "which one it is. Start the job with `accelerate launch` or torchrun, or set RANK (and MASTER_ADDR, "
                "MASTER_PORT) for each process."
            )
        if size is None and local_rank:
            raise TopologyError(
                f"LOCAL_RANK={local_rank} says that this is one of several processes, but RANK and WORLD_SIZE are not "
                "set. Set both for each process, or unset LOCAL_RANK to train in one process."
            )
        return None
    if size is None:
        raise TopologyError(
            f"RANK={rank} says that this process is one of several, but WORLD_SIZE is not set. Set WORLD_SIZE to their "
            "number, or unset RANK to train in one process."
        )
    _check(rank, size, "RANK", "WORLD_SIZE")
    return _explicit(rank, size, local_rank)


def _explicit(rank: int, size: int, local_rank: int | None) -> Topology:
    nodes = _number("GROUP_WORLD_SIZE")
    local_size = _number("LOCAL_WORLD_SIZE")
    if local_size is None:
        local_size = size // nodes if nodes and size % nodes == 0 else None
    if local_size is None:
        local_size = size if local_rank is None or local_rank == rank else local_rank + 1
    if local_rank is None:
        local_rank = rank % local_size
    _check(local_rank, local_size, "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if local_size > size:
        raise TopologyError(
            f"LOCAL_WORLD_SIZE={local_size} processes on this machine are more than WORLD_SIZE={size} in the whole job."
        )
    node = _number("GROUP_RANK")
    if node is None:
        node = _number("NODE_RANK")
    address, port = _rendezvous()
    return Topology(
        rank=rank,
        world_size=size,
        local_rank=local_rank,
        local_world_size=local_size,
        node_rank=rank // local_size if node is None else node,
        num_nodes=nodes or -(-size // local_size),
        source="torchrun",
        master_addr=address,
        master_port=port,
    )


def _around() -> bool:
    """Whether MPI or Slurm says which process this is."""
    return _from_mpi() is not None or _from_slurm() is not None


def _from_mpi() -> Topology | None:
    for names in MPI:
        rank, size = _number(names.rank), _number(names.size)
        if rank is None and size is None:
            continue
        if rank is None or size is None:
            given, missing = (names.size, names.rank) if rank is None else (names.rank, names.size)
            raise TopologyError(
                f"{given} is set and {missing} is not, so the place of this process in its MPI job is not known. Start "
                "the job with mpirun or srun, or unset both."
            )
        _check(rank, size, names.rank, names.size)
        if size > 1:
            return _placed(rank, size, _number(names.local_rank), _number(names.local_size), "mpi", names)
    return None


def _placed(
    rank: int, size: int, local_rank: int | None, local_size: int | None, source: str, names: MpiNames
) -> Topology:
    if local_size is None:
        local_size = size
    if local_rank is None:
        local_rank = rank % local_size
    _check(local_rank, local_size, names.local_rank, names.local_size)
    address, port = _rendezvous()
    if address is None and local_size == size:
        address = "127.0.0.1"
    return Topology(
        rank=rank,
        world_size=size,
        local_rank=local_rank,
        local_world_size=local_size,
        node_rank=rank // local_size,
        num_nodes=-(-size // local_size),
        source=source,
        master_addr=address,
        master_port=port or 29500,
    )


def _from_slurm() -> Topology | None:
    """Only a step of several tasks is a job of several processes: a batch script or an interactive shell is not."""
    rank, size = _number("SLURM_PROCID"), _number("SLURM_STEP_NUM_TASKS")
    if rank is None or size is None or size < 2:
        return None
    _check(rank, size, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    nodes = _number("SLURM_STEP_NUM_NODES") or _number("SLURM_NNODES") or 1
    node = _number("SLURM_NODEID") or 0
    local_rank = _number("SLURM_LOCALID") or 0
    address, port = _rendezvous()
    if address is None:
        hosts = hosts_of(env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or "")
        address = "127.0.0.1" if nodes == 1 or not hosts else hosts[0]
    if port is None:
        # Every task computes the same port; jobs and steps that share a machine get different ones.
        port = 20000 + ((_number("SLURM_JOB_ID") or 0) * 31 + (_number("SLURM_STEP_ID") or 0)) % 20000
    return Topology(
        rank=rank,
        world_size=size,
        local_rank=local_rank,
        local_world_size=_tasks_on(node, env.get("SLURM_STEP_TASKS_PER_NODE") or "") or -(-size // nodes),
        node_rank=node,
        num_nodes=nodes,
        source="slurm",
        master_addr=address,
        master_port=port,
    )


def _tasks_on(node: int, tasks_per_node: str) -> int | None:
    """Entry ``node`` of a list such as ``2(x3),1``."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks_per_node):
        counts += [int(count)] * int(times or 1)
    return counts[node] if node < len(counts) else None
