"""Joining the job's process group, once."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from accelerate import env, runtime
from accelerate.comm.base import Collectives
from accelerate.comm.control import control_for
from accelerate.comm.group import ProcessGroupCollectives
from accelerate.comm.solo import SoloCollectives
from accelerate.comm.watch import Watch
from accelerate.devices.base import DeviceBackend
from accelerate.errors import StateError, TopologyError
from accelerate.topology import Topology

__all__ = ["JobCollectives", "backend_for", "connect", "in_use", "job_collectives", "leave", "set_timeout"]

logger = logging.getLogger(__name__)

_ON_CPU = frozenset({"gloo", "mpi", "ucc", "threaded", "fake"})


def in_use() -> bool:
    """Whether this process is in a torch process group already."""
    return dist.is_available() and dist.is_initialized()


def backend_for(backend: DeviceBackend, asked: str | None) -> str:
    """The torch backend for a kind of device. A GPU's backend asked for where the CPU trains becomes gloo.

    Raises:
        TopologyError: this build of torch has no such backend.
    """
    name = asked or backend.comm_backend or "gloo"
    if backend.type == "cpu" and asked is not None and ":" not in name and name not in _ON_CPU:
        name = "gloo"
    if ":" not in name and not dist.is_backend_available(name):
        if asked is None and backend.type != "cpu":
            return "gloo"
        raise TopologyError(
            f"The communication backend {name!r} was asked for, but this build of torch has not got it. Leave "
            f"`backend` out to take {backend.comm_backend or 'gloo'!r}."
        )
    return name


def connect(
    topology: Topology,
    backend: DeviceBackend,
    *,
    device: torch.device,
    comm_backend: str | None = None,
    timeout: timedelta | None = None,
    init_method: str | None = None,
) -> Collectives:
    """Collective. The collectives of the whole job: over the group in use if there is one, else over a new one.

    Raises:
        TopologyError: the address to meet at is not known, or the group cannot be formed.
        StateError: a timeout is asked for that the group in use cannot take.
    """
    found = in_use()
    if found and timeout is not None:
        set_timeout(timeout)
    elif not found and topology.distributed:
        _join(topology, backend_for(backend, comm_backend), timeout, init_method)
    if topology.world_size == 1:
        return SoloCollectives()
    group = job_collectives(device)
    if not found:
        # Every rank is here now. In a group that somebody else made it is the first checked call that all ranks share.
        _ = group.control
    return group


def job_collectives(device: torch.device) -> JobCollectives:
    """The collectives of the group in use: one object as long as the group exists, also after a reset of the state."""
    slots = runtime.slots()
    known: JobCollectives | None = slots.job
    group: Any = dist.group.WORLD
    if known is not None and known.group is group:
        known.device = device
        return known
    if known is not None:
        known.leave()
    made = slots.job = JobCollectives(group, device)
    return made


def leave() -> None:
    """Takes this process out of the job's group; the others are told. Does nothing where there is none."""
    slots = runtime.slots()
    known: JobCollectives | None = slots.job
    slots.job = slots.frames = None
    if known is not None:
        known.leave()
    if in_use():
        dist.destroy_process_group()


class JobCollectives(ProcessGroupCollectives):
    """The collectives of the whole job, with the group in which its ranks compare notes."""

    watch: Watch | None = None

    @cached_property
    def control(self) -> Collectives:
        """Collective at the first access. Carries the frames of :mod:`accelerate.comm.frames`."""
        found = control_for(self)
        if found is None:
            return self
        self.watch = found.watch
        return found

    def leave(self) -> None:
        """Tells the other ranks that this one takes no further part."""
        if self.watch is not None:
            self.watch.close("left the process group")

    def _wait(self, work: Any) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            if self.watch is None:
                raise
            raise self.watch.lost(error) from error


def set_timeout(timeout: timedelta) -> None:
    """Makes ``timeout`` hold for the calls of the group in use from now on.

    Raises:
        StateError: its backend cannot change it any more.
    """
    group: Any = dist.group.WORLD
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch only warns where it changes nothing
            dist.distributed_c10d._set_pg_timeout(timeout, group)
    except Exception as error:  # each backend raises its own kind
        raise StateError(
            f"timeout={timeout} was asked for after the process group had been initialised, and its backend "
            f"{dist.get_backend()!r} cannot change it any more. Give it where the group is made: "
            "Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=...)]) as the first thing that the program "
            "does, or torch.distributed.init_process_group(timeout=...)."
        ) from error


def _join(topology: Topology, name: str, timeout: timedelta | None, init_method: str | None) -> None:
    method = init_method or _meeting_place(topology)
    options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    try:
        store = _store(topology, method, options)
        dist.init_process_group(name, store=store, rank=topology.rank, world_size=topology.world_size, **options)
    except (RuntimeError, ValueError) as error:
        place = f"{topology.master_addr}:{topology.master_port}" if method == "env://" else method
        raise TopologyError(
            f"Rank {topology.rank} of {topology.world_size} could not join the {name} group at {place}: {error}. "
            "Check that every rank uses the same address, that the port is free there, and that all ranks were started."
        ) from error


def _store(topology: Topology, method: str, options: dict[str, Any]) -> Any:
    """Collective at the first call. Where the ranks of the next group leave their addresses for one another.

    The meeting place outlives a group that is left: a rank that comes back early would else read the addresses of the
    group before, or meet a server that is about to end.
    """
    slots = runtime.slots()
    place = (method, topology.rank, topology.world_size, topology.master_addr, topology.master_port)
    if slots.meeting is None or slots.meeting.place != place:
        store, _, _ = next(dist.rendezvous(method, topology.rank, topology.world_size, **options))  # type: ignore[attr-defined]
        slots.meeting = _Meeting(place, store)
    slots.meeting.groups += 1
    return c10d.PrefixStore(f"accelerate/{slots.meeting.groups}", slots.meeting.store)


@dataclass(slots=True)
class _Meeting:
    place: tuple[Any, ...]
    store: Any
    groups: int = 0


def _meeting_place(topology: Topology) -> str:
    file = env.get("ACCELERATE_DEBUG_RDV_FILE")
    if file:
        return f"file://{file}"
    if topology.master_addr is None or topology.master_port is None:
        missing = " and ".join(
            name
            for name, value in (("MASTER_ADDR", topology.master_addr), ("MASTER_PORT", topology.master_port))
            if value is None
        )
        raise TopologyError(
            f"This is rank {topology.rank} of {topology.world_size} ({topology.source}), but {missing} is not set, so "
            "the ranks do not know where to meet. Set it to the first machine's address (and a free port there), or "
            "start the job with `accelerate launch` or torchrun."
        )
    # torchrun keeps the store at this address itself, which only env:// knows how to join.
    return "env://" if topology.source == "torchrun" else f"tcp://{topology.master_addr}:{topology.master_port}"
