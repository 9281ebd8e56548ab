"""Setting this process up: its place in the job, its device, its group."""

from __future__ import annotations

import logging
from datetime import timedelta

import torch
import torch.distributed as dist

from accelerate import devices, env, runtime
from accelerate.comm.connection import backend_for, connect, in_use, set_timeout
from accelerate.comm.where import user_place
from accelerate.devices.base import DeviceBackend
from accelerate.errors import StateError
from accelerate.optional import available
from accelerate.runtime import Runtime
from accelerate.topology import Topology

__all__ = ["start"]

logger = logging.getLogger(__name__)


def start(
    cpu: bool = False,
    backend: str | None = None,
    timeout: timedelta | None = None,
    init_method: str | None = None,
) -> Runtime:
    """Collective the first time. The Runtime of this process: set up now, or the one in use where that agrees.

    Raises:
        StateError: another device or timeout is asked for than the one in use can take.
        TopologyError: the processes do not form the one group that the environment asks for.
        DeviceError: the device asked for is not there.
    """
    held = runtime.find()
    if held is not None:
        return _agreeing(held, cpu, backend, timeout)
    kind = devices.choose(cpu)
    topology = _place()
    device = _device(kind, topology)
    group = connect(topology, kind, device=device, comm_backend=backend, timeout=timeout, init_method=init_method)
    distributed = topology.world_size > 1
    name = str(dist.get_backend()) if distributed else None
    if distributed and topology.is_main:
        known = cpu or env.flag("ACCELERATE_USE_CPU") or env.flag("ACCELERATE_DEVICE_NOTICE")
        _notice(kind, backend, known, topology.world_size, name)
    made = runtime.install(
        Runtime(
            topology=topology,
            device=device,
            backend=kind,
            comm_backend=name,
            collectives=group,
            cpu=cpu or env.flag("ACCELERATE_USE_CPU"),
            verify_shapes=env.flag("ACCELERATE_DEBUG_MODE"),
            origin=user_place(),
        )
    )
    if distributed and env.flag("ACCELERATE_USE_DEEPSPEED") and available("deepspeed"):
        # Models may be created sharded before there is an Accelerator, which needs DeepSpeed's group.
        from accelerate.strategies.deepspeed.library import connect as connect_engine

        connect_engine(made)
    return made


def _place() -> Topology:
    told = runtime.slots().topology
    if told is not None:
        return told
    if in_use():
        return Topology.of_group(dist.get_rank(), dist.get_world_size())
    return Topology.detect()


def _device(kind: DeviceBackend, topology: Topology) -> torch.device:
    wanted = devices.requested()
    if wanted is not None and ":" in wanted and not topology.distributed and wanted.partition(":")[0] == kind.type:
        return kind.activate(int(wanted.partition(":")[2]))
    return kind.activate(topology.local_rank)


def _agreeing(held: Runtime, cpu: bool, backend: str | None, timeout: timedelta | None) -> Runtime:
    if cpu and held.device.type != "cpu":
        raise StateError(
            f"cpu=True was asked for, but this process has been set up on {held.device} already. Pass cpu=True "
            "where the first state or Accelerator of the program is made, or set ACCELERATE_USE_CPU=true."
        )
    if held.topology.world_size > 1 and in_use():
        if timeout is not None:
            set_timeout(timeout)
        if backend is not None and backend_for(held.backend, backend) != held.comm_backend:
            logger.warning(
                "backend=%r was asked for, but the group in use is %s's, and it stays.", backend, held.comm_backend
            )
    return held


def _notice(kind: DeviceBackend, asked: str | None, on_purpose: bool, size: int, name: str | None) -> None:
    if kind.type == "cpu" and not on_purpose:
        because = "no accelerator was found on this machine"
    elif asked is not None and name is not None and asked not in name:
        because = f"the backend {asked} cannot send from the {kind.type}"
    else:
        return
    logger.warning("%d processes train on the %s over %s: %s.", size, kind.type, name, because)
