"""The group in which ranks compare notes: apart from the one in which models and data travel.

A rank that is in a model's backward and a rank that is in a gather then never read each other's bytes; they wait, and
the watch can say so.
"""

from __future__ import annotations

import ctypes
import random
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from accelerate.comm.group import ProcessGroupCollectives
from accelerate.comm.watch import Watch, limit
from accelerate.errors import RankLeftError

__all__ = ["ControlCollectives", "control_for"]

_MOST = 128  # every rank keeps a connection to every other
_PLAIN = frozenset({"threaded", "fake", "mpi"})


class ControlCollectives(ProcessGroupCollectives):
    """Collectives on the CPU whose waiting is watched. ``name`` is of this job alone, also after a restart."""

    def __init__(self, group: Any, watch: Watch, name: str) -> None:
        super().__init__(group, torch.device("cpu"), types=frozenset({"cpu"}))
        self.watch = watch
        self.name = name

    def _wait(self, work: Any) -> None:
        try:
            self.watch.wait(work)
        except RankLeftError:
            # Its destructor would wait for the call that never ends, and keep the process from leaving.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.group))
            raise


def timeout_of(group: Any) -> timedelta:
    """How long a call of ``group`` may take."""
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        found = getattr(options, "_timeout", None)
        if isinstance(found, timedelta):
            return found
    return timedelta(minutes=30)


def control_for(main: ProcessGroupCollectives) -> ControlCollectives | None:
    """Collective. A control group beside ``main``; None where torch cannot make one, or the job is too large."""
    name = str(dist.get_backend(main.group))
    if name in _PLAIN or main.size > _MOST or not dist.is_gloo_available():
        return None
    # A restarted job may find its predecessor's keys in the store; a name that rank 0 draws keeps them apart. It comes
    # from the system, so that no seeded generator moves.
    drawn = torch.tensor([random.SystemRandom().getrandbits(62)])
    name = f"accelerate/{int(main.broadcast(drawn))}"
    c10d: Any = dist.distributed_c10d
    store = c10d._get_default_store()
    group = dist.ProcessGroupGloo(
        c10d.PrefixStore(f"{name}/group", store), main.rank, main.size, timeout_of(main.group)
    )
    watch = Watch(main.rank, main.size, c10d.PrefixStore(f"{name}/watch", store), limit())
    return ControlCollectives(group, watch, name)
