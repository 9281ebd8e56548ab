"""Settings of jobs that ``mpirun`` starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from accelerate.config.fields import Section, option

__all__ = ["MpiSection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiSection:
    """What ``mpirun_config`` and ``--mpirun_hostfile`` say."""

    SECTION: ClassVar[Section] = Section(
        name="mpi",
        title="MPI",
        yaml="mpirun_config",
        flag_prefix="mpirun_",
        yaml_prefix="mpirun_",
        about="In force with a host file, or with `--engine mpi`.",
    )

    hostfile: str | None = option(
        None,
        help="Host file with the machines and their slots.",
        ask="Path of the host file for mpirun (empty: none)?",
    )
