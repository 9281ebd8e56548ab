"""TPUs and other devices behind torch_xla."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from accelerate.devices.base import DeviceBackend

__all__ = ["XlaBackend"]


def _xm() -> Any:
    return import_module("torch_xla.core.xla_model")


class _XlaRng:
    def get_state(self) -> int:
        return int(_xm().get_rng_state())

    def set_state(self, state: int) -> None:
        _xm().set_rng_state(state)

    def seed(self, seed: int) -> None:
        _xm().set_rng_state(seed)

    def get_current(self) -> torch.Tensor | None:
        return torch.tensor(self.get_state())

    def set_current(self, state: torch.Tensor) -> None:
        self.set_state(int(state.item()))


class _XlaMemory:
    def empty_cache(self) -> None:
        return None

    def available(self, index: int = 0) -> int:
        info = _xm().get_memory_info(_xm().xla_device())
        return int(info["bytes_limit"]) - int(info["bytes_used"])

    def total(self, index: int = 0) -> int:
        return int(_xm().get_memory_info(_xm().xla_device())["bytes_limit"])

    def peak(self, index: int = 0) -> int:
        return int(_xm().get_memory_info(_xm().xla_device()).get("peak_bytes_used", 0))

    def reset_peak(self, index: int = 0) -> None:
        return None


class XlaBackend(DeviceBackend):
    """The device that torch_xla gives this process."""

    type = "xla"
    comm_backend = "xla"
    visible_env = None

    def __init__(self) -> None:
        self.rng = _XlaRng()
        self.memory = _XlaMemory()

    def is_available(self) -> bool:
        return find_spec("torch_xla") is not None

    def count(self) -> int:
        return int(import_module("torch_xla.runtime").addressable_device_count()) if self.is_available() else 0

    def activate(self, local_rank: int) -> torch.device:
        device: torch.device = _xm().xla_device()
        return device

    def supports(self, dtype: torch.dtype) -> bool:
        return dtype in (torch.float32, torch.bfloat16)
