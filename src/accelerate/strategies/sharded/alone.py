"""A process group of one, for engines that need a group where a process was started without a launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from accelerate.errors import TopologyError

if TYPE_CHECKING:
    from accelerate.runtime import Runtime

__all__ = ["close_own_group", "open_own_group"]


def open_own_group(runtime: Runtime) -> bool:
    """Opens a group of one where there is none; returns whether it did.

    Raises:
        TopologyError: there are several processes, and no group that they share.
    """
    if dist.is_initialized():
        return False
    if runtime.topology.world_size > 1:
        raise TopologyError(
            f"FSDP was asked for in a job of {runtime.topology.world_size} processes that share no process group. "
            "Construct Accelerator() before anything that closes the group."
        )
    backend = runtime.comm_backend or ("gloo" if runtime.device.type == "cpu" else None)
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    return True


def close_own_group() -> None:
    """Closes the group again."""
    if dist.is_initialized():
        dist.destroy_process_group()
