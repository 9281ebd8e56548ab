"""How the ranks of a job find each other for a save."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from accelerate import env, runtime
from accelerate.checkpoint.meeting import Meeting, StoreBoard
from accelerate.comm.watch import Watch, limit

__all__ = ["SAVING", "meeting_of_job"]

SAVING = "save_state"


def meeting_of_job() -> Meeting | None:
    """This rank's meeting, over the store that formed the group; None where there is no group with a store."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    held = runtime.current()
    # A restarted job may find its predecessor's keys in the store; the launcher counts its attempts.
    name = f"accelerate/checkpoint/{env.get('TORCHELASTIC_RESTART_COUNT') or 0}"
    private: Any = dist.distributed_c10d
    store = private.PrefixStore(name, private._get_default_store())
    meeting = Meeting(board=StoreBoard(store), rank=held.topology.rank, size=held.topology.world_size)
    meeting.open()
    meeting.watch = lambda: _Watching.of(held.collectives)
    return meeting


class _Watching:
    """What the job's watch can tell a rank that waits."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.doubt = limit() or float("inf")
        self.gone = watch.gone

    @classmethod
    def of(cls, collectives: Any) -> _Watching | None:
        """The watch of these collectives, where they have one by now. Asking for one would be a collective call."""
        control = getattr(collectives, "__dict__", {}).get("control")
        watch = getattr(control, "watch", None)
        return cls(watch) if watch is not None else None

    def elsewhere(self) -> str | None:
        """Where the main process waits, if it waits in another call than ours."""
        note = self._watch.notes().get(0)
        if note is None or note.call in (None, SAVING) or note.still < self.doubt / 2:
            return None
        return f"is in {note.call} at {note.line}"
