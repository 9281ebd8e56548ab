"""The public questions about this machine's devices."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch

from accelerate.devices.registry import choose, get

__all__ = [
    "is_bf16_available",
    "is_cuda_available",
    "is_fp16_available",
    "is_habana_gaudi1",
    "is_hpu_available",
    "is_mlu_available",
    "is_mps_available",
    "is_musa_available",
    "is_neuron_available",
    "is_npu_available",
    "is_rocm_available",
    "is_sdaa_available",
    "is_torch_xla_available",
    "is_xccl_available",
    "is_xpu_available",
]


def _usable(type: str, check_device: bool = False) -> bool:
    backend = get(type)
    if not backend.is_available():
        return False
    if check_device:
        try:
            backend.activate(0)
        except Exception:  # whatever a vendor's driver raises: the device cannot be used
            return False
    return True


def is_cuda_available() -> bool:
    """Whether a CUDA (or ROCm) device is there. Starts nothing, so the process may still fork."""
    return _usable("cuda")


def is_rocm_available() -> bool:
    """Whether the CUDA calls of this torch go to AMD devices, and one is there."""
    return torch.version.hip is not None and is_cuda_available()


def is_mps_available(min_version: str = "1.12") -> bool:
    """Whether an Apple GPU is there. The torch versions in use here all support it."""
    return _usable("mps")


def is_npu_available(check_device: bool = False) -> bool:
    """Whether an Ascend NPU is there; with ``check_device`` also whether it can be used."""
    return _usable("npu", check_device)


def is_mlu_available(check_device: bool = False) -> bool:
    """Whether a Cambricon MLU is there; with ``check_device`` also whether it can be used."""
    return _usable("mlu", check_device)


def is_musa_available(check_device: bool = False) -> bool:
    """Whether a Moore Threads GPU is there; with ``check_device`` also whether it can be used."""
    return _usable("musa", check_device)


def is_sdaa_available(check_device: bool = False) -> bool:
    """Whether a Tecorigin accelerator is there; with ``check_device`` also whether it can be used."""
    return _usable("sdaa", check_device)


def is_neuron_available(check_device: bool = False) -> bool:
    """Whether a Neuron device is there; with ``check_device`` also whether it can be used."""
    return _usable("neuron", check_device)


def is_xpu_available(check_device: bool = False) -> bool:
    """Whether an Intel GPU is there; with ``check_device`` also whether it can be used."""
    return _usable("xpu", check_device)


def is_hpu_available(init_hccl: bool = False) -> bool:
    """Whether a Gaudi accelerator is there; with ``init_hccl`` its collectives are loaded too."""
    if not _usable("hpu"):
        return False
    if init_hccl:
        import habana_frameworks.torch.distributed.hccl  # type: ignore[import-not-found]  # noqa: F401
    return True


def is_habana_gaudi1() -> bool:
    """Whether the Gaudi accelerator is one of the first generation."""
    if not _usable("hpu"):
        return False
    name: Any = get("hpu").module.get_device_name()  # type: ignore[attr-defined]
    return str(name).strip().upper() == "GAUDI"


def is_torch_xla_available(check_is_tpu: bool = False, check_is_gpu: bool = False) -> bool:
    """Whether torch_xla is installed; with one of the checks also whether that kind of device is behind it.

    Raises:
        ValueError: both checks at once.
    """
    if check_is_tpu and check_is_gpu:
        raise ValueError("check_is_tpu=True and check_is_gpu=True exclude each other. Ask for one kind of device.")
    if find_spec("torch_xla") is None:
        return False
    if not (check_is_tpu or check_is_gpu):
        return True
    import torch_xla.runtime as xla_runtime

    kind = xla_runtime.device_type()
    return kind == "TPU" if check_is_tpu else kind in ("CUDA", "ROCM", "GPU")


def is_xccl_available() -> bool:
    """Whether this torch has the collective library of Intel GPUs built in."""
    return torch.distributed.is_available() and torch.distributed.is_backend_available("xccl")


def is_bf16_available(ignore_tpu: bool = False) -> bool:
    """Whether the device that a process takes here computes in bfloat16; with ``ignore_tpu`` a TPU does not count."""
    backend = choose()
    return not (ignore_tpu and backend.type == "xla") and backend.supports(torch.bfloat16)


def is_fp16_available() -> bool:
    """Whether the device that a process takes here computes in float16."""
    return choose().supports(torch.float16)
