"""The CPU as a device: always there, one a process, gloo between processes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from accelerate.devices.base import DeviceBackend

__all__ = ["CpuBackend"]


def _psutil() -> Any:
    return import_module("psutil")  # loaded when somebody asks for memory, which most programs never do


class _CpuRng:
    """Nothing of its own: the CPU generator is torch's default one, which everybody handles under "torch"."""

    def get_state(self) -> list[torch.Tensor]:
        return []

    def set_state(self, state: list[torch.Tensor]) -> None:
        return None

    def seed(self, seed: int) -> None:
        return None

    def get_current(self) -> torch.Tensor | None:
        return None

    def set_current(self, state: torch.Tensor) -> None:
        return None


class _CpuMemory:
    """Main memory. The peak is the largest resident size seen by the operating system since the process started, or,
    after ``reset_peak``, the growth over the size at that moment."""

    def __init__(self) -> None:
        self._base = 0

    def empty_cache(self) -> None:
        return None

    def available(self, index: int = 0) -> int:
        return int(_psutil().virtual_memory().available)

    def total(self, index: int = 0) -> int:
        return int(_psutil().virtual_memory().total)

    def peak(self, index: int = 0) -> int:
        return max(0, self._high_water() - self._base)

    def reset_peak(self, index: int = 0) -> None:
        self._base = int(_psutil().Process().memory_info().rss)

    def _high_water(self) -> int:
        try:
            import resource
        except ImportError:  # Windows keeps the peak elsewhere
            info = _psutil().Process().memory_info()
            return int(getattr(info, "peak_wset", info.rss))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class CpuBackend(DeviceBackend):
    """The processor itself."""

    type = "cpu"
    comm_backend = "gloo"
    visible_env = None

    def __init__(self) -> None:
        self.rng = _CpuRng()
        self.memory = _CpuMemory()

    def is_available(self) -> bool:
        return True

    def count(self) -> int:
        return 1

    def activate(self, local_rank: int) -> torch.device:
        return torch.device("cpu")

    def supports(self, dtype: torch.dtype) -> bool:
        return dtype in (torch.float32, torch.bfloat16, torch.float16)
