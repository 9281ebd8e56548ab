"""The group that this process talks in: the Runtime's, or torch's default group where nothing was set up."""

from __future__ import annotations

import torch
import torch.distributed as dist

from accelerate import runtime
from accelerate.comm.base import Collectives
from accelerate.comm.connection import job_collectives
from accelerate.comm.frames import Frames
from accelerate.comm.solo import SoloCollectives

__all__ = ["collectives", "frames"]

_SOLO = SoloCollectives()


def collectives() -> Collectives:
    """The collectives that library calls use."""
    held = runtime.find()
    if held is not None:
        return held.collectives
    if not (dist.is_available() and dist.is_initialized()):
        return _SOLO
    return job_collectives(torch.device("cpu"))


def frames() -> Frames | None:
    """The frames of the group, or None in a group of one."""
    group = collectives()
    if group.size == 1:
        return None
    slots = runtime.slots()
    known = slots.frames
    if not isinstance(known, Frames) or known.main is not group:
        known = slots.frames = Frames(group, getattr(group, "control", None))
    return known
