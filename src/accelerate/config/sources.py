"""Where values come from, and which sections of a configuration are in force."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from accelerate.config.run import SECTIONS, RunConfig
from accelerate.env import encode

__all__ = ["Origin", "Source", "active_sections", "build"]


class Origin(IntEnum):
    """Where a value came from; the larger one wins."""

    DEFAULT = 0
    SURROUNDINGS = 1  # a scheduler's variables
    FILE = 2
    ENVIRONMENT = 3
    COMMAND_LINE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A value, where it came from (``--flag``, variable or ``file:line``), and what it goes before."""

    origin: Origin
    where: str
    value: Any
    overrides: tuple[Source, ...] = ()

    def __str__(self) -> str:
        return f"{encode(self.value)} ({self.where})"


def build(sources: Mapping[str, Source]) -> RunConfig:
    """The record that sources of all settings make up."""
    top = {path: source.value for path, source in sources.items() if "." not in path}
    for name, owner in SECTIONS.items():
        prefix = f"{name}."
        top[name] = owner(
            **{path[len(prefix) :]: source.value for path, source in sources.items() if path.startswith(prefix)}
        )
    return RunConfig(**top)


def active_sections(config: RunConfig) -> frozenset[str]:
    """The sections (attributes of a RunConfig) that are in force."""
    in_force = {
        "fsdp": config.use_fsdp,
        "deepspeed": config.use_deepspeed,
        "megatron": config.use_megatron_lm,
        "parallelism": config.use_parallelism_config,
        "fp8": config.mixed_precision == "fp8",
        "dynamo": config.dynamo.backend not in (None, "no"),
        "mpi": config.mpi.hostfile is not None or config.engine == "mpi",
        "tpu_settings": config.tpu or config.distributed_type == "XLA",
        "sagemaker": config.compute_environment == "AMAZON_SAGEMAKER",
    }
    return frozenset(name for name, active in in_force.items() if active)
