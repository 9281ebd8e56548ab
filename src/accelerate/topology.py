"""Ranks and sizes of the job this process is part of."""

from __future__ import annotations

from dataclasses import dataclass

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
