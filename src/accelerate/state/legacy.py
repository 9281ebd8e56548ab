"""The ``DistributedType`` that a process reports before a strategy was chosen."""

from __future__ import annotations

from accelerate import devices, env
from accelerate.config.enums import DistributedType
from accelerate.topology import Topology

__all__ = ["by_device", "get_current_device_type", "reported"]

_BY_DEVICE = {
    "cpu": DistributedType.MULTI_CPU,
    "mps": DistributedType.MULTI_CPU,
    "xla": DistributedType.XLA,
    "npu": DistributedType.MULTI_NPU,
    "mlu": DistributedType.MULTI_MLU,
    "sdaa": DistributedType.MULTI_SDAA,
    "musa": DistributedType.MULTI_MUSA,
    "xpu": DistributedType.MULTI_XPU,
    "hpu": DistributedType.MULTI_HPU,
    "neuron": DistributedType.MULTI_NEURON,
}


def by_device(device_type: str) -> DistributedType:
    """What plain data parallelism on such a device is called."""
    return _BY_DEVICE.get(device_type, DistributedType.MULTI_GPU)


def reported(topology: Topology, device_type: str, kind: DistributedType) -> DistributedType:
    """What to report for this process; ``kind`` where there are several. DeepSpeed is known from the environment before
    anything else is."""
    if env.flag("ACCELERATE_USE_DEEPSPEED"):
        return DistributedType.DEEPSPEED
    if device_type == "xla":
        return DistributedType.XLA
    return kind if topology.world_size > 1 else DistributedType.NO


def get_current_device_type() -> tuple[str, str]:
    """The kind of accelerator of this machine and the name of data parallelism on it; ("cuda", "MULTI_GPU") where there
    is none, which is what a launch assumes."""
    found = devices.choose().type
    kind = found if found != "cpu" else "cuda"
    return kind, by_device(kind).value
