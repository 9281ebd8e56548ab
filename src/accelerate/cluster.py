"""The words in which MPI and Slurm tell a process its place: names of variables, and lists of hosts."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["MPI", "MpiNames", "hosts_of"]


@dataclass(frozen=True, slots=True)
class MpiNames:
    """The names under which one MPI tells a process its place."""

    rank: str
    size: str
    local_rank: str
    local_size: str


# OpenMPI; MVAPICH; Intel MPI and MPICH.
MPI = (
    MpiNames(
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"
    ),
    MpiNames("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    MpiNames("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def hosts_of(nodelist: str) -> list[str]:
    """The host names in a list such as ``gpu[01-03,7],login``."""
    hosts: list[str] = []
    for item in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", nodelist):
        hosts += _expand(item)
    return hosts


def _expand(item: str) -> list[str]:
    found = re.search(r"\[([^\]]*)\]", item)
    if found is None:
        return [item]
    before, after = item[: found.start()], item[found.end() :]
    names: list[str] = []
    for part in found.group(1).split(","):
        first, dash, last = part.partition("-")
        numbers = range(int(first), int(last) + 1) if dash else None
        middles = [part] if numbers is None else [str(number).zfill(len(first)) for number in numbers]
        for middle in middles:
            names += _expand(before + middle + after)
    return names
