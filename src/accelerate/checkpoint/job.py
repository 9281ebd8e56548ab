"""How the ranks of a job find each other for a save."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from accelerate import env, runtime
from accelerate.checkpoint.meeting import Meeting, StoreBoard

__all__ = ["meeting_of_job"]


def meeting_of_job() -> Meeting | None:
    """This rank's meeting, over the store that formed the group; None where there is no group with a store."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    held = runtime.current()
    control = vars(held.collectives).get("control") if hasattr(held.collectives, "__dict__") else None
    # A restarted job may find its predecessor's keys in the store. The control group's name is of this job alone; where
    # there is none, the launcher counts its attempts.
    name = getattr(control, "name", None) or f"attempt-{env.get('TORCHELASTIC_RESTART_COUNT') or 0}"
    private: Any = dist.distributed_c10d
    store = private.PrefixStore(f"{name}/checkpoint", private._get_default_store())
    meeting = Meeting(StoreBoard(store), held.topology.rank, held.topology.world_size)
    watch = getattr(control, "watch", None)
    if watch is not None:
        meeting.gone = watch.gone
    return meeting
