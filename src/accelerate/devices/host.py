"""What this machine is made of: processors near a device, GPU models, driver versions."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from accelerate import env
from accelerate.devices.registry import choose, get
from accelerate.errors import DeviceError
from accelerate.topology import Topology

__all__ = [
    "CPUInformation",
    "check_cuda_fp8_capability",
    "check_cuda_p2p_ib_support",
    "get_cpu_distributed_information",
    "get_driver_version",
    "get_gpu_info",
    "override_numa_affinity",
    "set_numa_affinity",
]

logger = logging.getLogger(__name__)

_PCI = Path("/sys/bus/pci/devices")
_NODES = Path("/sys/devices/system/node")


@dataclass
class CPUInformation:
    """A process's place in a job on CPUs."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1


def get_cpu_distributed_information() -> CPUInformation:
    """This process's place in the job, from the variables of torchrun, MPI or Slurm."""
    found = Topology.detect()
    return CPUInformation(
        rank=found.rank,
        world_size=found.world_size,
        local_rank=found.local_rank,
        local_world_size=found.local_world_size,
    )


def _nvidia(query: str) -> list[str]:
    """One line a GPU of what nvidia-smi answers.

    Raises:
        DeviceError: there is no nvidia-smi on this machine, or it fails.
    """
    command = shutil.which("nvidia-smi")
    if command is None:
        raise DeviceError(f"nvidia-smi was to be asked for {query}, but it is not on this machine's PATH.")
    try:
        found = subprocess.run(
            [command, f"--query-gpu={query}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    except (subprocess.SubprocessError, OSError) as error:
        raise DeviceError(f"nvidia-smi was asked for {query} and failed: {error}") from error
    return [line.strip() for line in found.stdout.splitlines() if line.strip()]


def get_gpu_info() -> tuple[list[str], int]:
    """The names of this machine's NVIDIA GPUs, and how many there are, without starting CUDA.

    Raises:
        DeviceError: nvidia-smi is not there or fails.
    """
    names = _nvidia("name")
    return names, len(names)


def get_driver_version() -> str:
    """The version of the NVIDIA driver.

    Raises:
        DeviceError: nvidia-smi is not there or fails.
    """
    return _nvidia("driver_version")[0]


def check_cuda_p2p_ib_support() -> bool:
    """Whether several GPUs of this machine may talk to each other directly. GeForce RTX 40 cards may not before driver
    550; where nothing can be found out the answer is yes."""
    try:
        names, count = get_gpu_info()
        if count < 2 or not any("RTX 40" in name for name in names):
            return True
        return int(get_driver_version().partition(".")[0]) >= 550
    except (DeviceError, ValueError, IndexError):
        return True


def check_cuda_fp8_capability() -> bool:
    """Whether the current CUDA device computes in 8-bit floating point (compute capability 8.9)."""
    if not get("cuda").is_available():
        return False
    return torch.cuda.get_device_capability() >= (8, 9)


def set_numa_affinity(local_process_index: int, verbose: bool | None = None) -> None:
    """Keeps this process on the processors next to its GPU, where ACCELERATE_CPU_AFFINITY is on."""
    if env.flag("ACCELERATE_CPU_AFFINITY"):
        override_numa_affinity(local_process_index, verbose)


def override_numa_affinity(local_process_index: int, verbose: bool | None = None) -> None:
    """Keeps this process on the processors next to its GPU. Without a GPU, or on a machine with one memory node, it
    stays where it is. ``verbose`` logs the processors; its default is ACCELERATE_DEBUG_MODE."""
    node = _node_of(local_process_index)
    if node is None or not hasattr(os, "sched_setaffinity"):
        return
    processors = parse_cpu_list((_NODES / f"node{node}" / "cpulist").read_text())
    os.sched_setaffinity(0, processors)
    if env.flag("ACCELERATE_DEBUG_MODE") if verbose is None else verbose:
        logger.info("Local process %d stays on processors %s.", local_process_index, processors)


@cache
def _node_of(index: int) -> int | None:
    if choose().type != "cuda" or index >= get("cuda").count():
        return None
    properties: Any = torch.cuda.get_device_properties(index)
    place = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
    try:
        node = int((_PCI / place / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 and (_NODES / f"node{node}").exists() else None


def parse_cpu_list(text: str) -> list[int]:
    """The numbers in a list such as ``0-3,8``."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            numbers += range(int(first), int(last or first) + 1)
    return numbers
