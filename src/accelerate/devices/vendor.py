"""Every device that torch reaches through a module of its own (``torch.cuda``, ``torch.npu``, …): one row each."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from accelerate.devices.base import DeviceBackend
from accelerate.errors import DeviceError

__all__ = ["ROWS", "Row", "VendorBackend"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What differs between vendors.

    ``module`` is the attribute of torch with the device's calls; ``package`` is imported first, where the vendor's
    support is a package of its own. ``indexed`` says whether a process chooses its device by number.
    """

    type: str
    comm_backend: str | None
    visible_env: str | None = None
    module: str = ""
    package: str | None = None
    indexed: bool = True
    single: bool = False
    float16: bool = True
    bfloat16: bool = True


ROWS = (
    Row(type="cuda", comm_backend="nccl", visible_env="CUDA_VISIBLE_DEVICES"),
    Row(type="xpu", comm_backend="xccl", visible_env="ZE_AFFINITY_MASK"),
    Row(type="npu", comm_backend="hccl", visible_env="ASCEND_RT_VISIBLE_DEVICES", package="torch_npu"),
    Row(type="mlu", comm_backend="cncl", visible_env="MLU_VISIBLE_DEVICES", package="torch_mlu"),
    Row(type="musa", comm_backend="mccl", visible_env="MUSA_VISIBLE_DEVICES", package="torch_musa"),
    Row(type="sdaa", comm_backend="tccl", visible_env="SDAA_VISIBLE_DEVICES", package="torch_sdaa"),
    Row(
        type="hpu",
        comm_backend="hccl",
        visible_env="HABANA_VISIBLE_MODULES",
        package="habana_frameworks.torch",
        indexed=False,
    ),
    Row(type="neuron", comm_backend="neuron", visible_env="NEURON_RT_VISIBLE_CORES", package="torch_neuronx"),
    Row(type="mps", comm_backend=None, indexed=False, single=True),
)


class _Rng:
    def __init__(self, owner: VendorBackend) -> None:
        self._owner = owner

    def get_state(self) -> list[torch.Tensor]:
        module = self._owner.module
        if hasattr(module, "get_rng_state_all"):
            return list(module.get_rng_state_all())
        return [module.get_rng_state()]

    def set_state(self, state: list[torch.Tensor]) -> None:
        module = self._owner.module
        if hasattr(module, "set_rng_state_all"):
            module.set_rng_state_all(state)
        elif state:
            module.set_rng_state(state[0])

    def seed(self, seed: int) -> None:
        module = self._owner.module
        (getattr(module, "manual_seed_all", None) or module.manual_seed)(seed)

    def get_current(self) -> torch.Tensor | None:
        state: torch.Tensor = self._owner.module.get_rng_state()
        return state.cpu()

    def set_current(self, state: torch.Tensor) -> None:
        self._owner.module.set_rng_state(state)


class _Memory:
    def __init__(self, owner: VendorBackend) -> None:
        self._owner = owner

    def empty_cache(self) -> None:
        if hasattr(self._owner.module, "empty_cache"):
            self._owner.module.empty_cache()

    def available(self, index: int = 0) -> int:
        return self._sizes(index)[0]

    def total(self, index: int = 0) -> int:
        return self._sizes(index)[1]

    def peak(self, index: int = 0) -> int:
        module = self._owner.module
        if hasattr(module, "max_memory_allocated"):
            return int(module.max_memory_allocated(index))
        return int(module.current_allocated_memory())

    def reset_peak(self, index: int = 0) -> None:
        if hasattr(self._owner.module, "reset_peak_memory_stats"):
            self._owner.module.reset_peak_memory_stats(index)

    def _sizes(self, index: int) -> tuple[int, int]:
        module = self._owner.module
        if hasattr(module, "mem_get_info"):
            free, total = module.mem_get_info(index)
            return int(free), int(total)
        if hasattr(module, "recommended_max_memory"):
            total = int(module.recommended_max_memory())
            return total - int(module.current_allocated_memory()), total
        total = int(module.get_device_properties(index).total_memory)
        return total - int(module.memory_allocated(index)), total


class VendorBackend(DeviceBackend):
    """A device described by one :class:`Row`."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.type = row.type
        self.comm_backend = row.comm_backend
        self.visible_env = row.visible_env
        self.rng = _Rng(self)
        self.memory = _Memory(self)

    @property
    def module(self) -> Any:
        """The torch module with this device's calls."""
        return getattr(torch, self.row.module or self.type)

    def is_available(self) -> bool:
        if not self._loaded():
            return False
        if self.type == "cuda":
            # device_count asks the driver's management library, which starts nothing here: the process may fork later.
            return torch.cuda.device_count() > 0
        return bool(self.module.is_available())

    def count(self) -> int:
        if not self.is_available():
            return 0
        return 1 if self.row.single or not hasattr(self.module, "device_count") else int(self.module.device_count())

    def activate(self, local_rank: int) -> torch.device:
        if not self.row.indexed:
            return torch.device(self.type)
        count = self.count()
        if local_rank >= count:
            visible = f" {self.visible_env} limits what this process sees." if self.visible_env else ""
            raise DeviceError(
                f"Local rank {local_rank} asks for {self.type}:{local_rank}, but this process sees {count} device(s) "
                f"of this kind.{visible} Start at most {count} process(es) on this machine."
            )
        device = torch.device(self.type, local_rank)
        self.module.set_device(device)
        return device

    def supports(self, dtype: torch.dtype) -> bool:
        if dtype is torch.float32:
            return True
        if dtype is torch.bfloat16:
            asked = getattr(self.module, "is_bf16_supported", None) if self._loaded() else None
            return self.row.bfloat16 and (asked is None or bool(asked()))
        return dtype is torch.float16 and self.row.float16

    def _loaded(self) -> bool:
        """Whether torch has this device's module, after the vendor's package (if any) put it there."""
        if self.row.package is not None and not hasattr(torch, self.type):
            try:
                if find_spec(self.row.package) is None:
                    return False
            except (ImportError, ValueError):
                return False
            import_module(self.row.package)
        return hasattr(torch, self.row.module or self.type)
