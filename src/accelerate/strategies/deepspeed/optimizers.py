"""Which optimizer updates where state is kept in main memory, or where kernels would have to be compiled first."""

from __future__ import annotations

from typing import Any

import torch

from accelerate.config.notice import notice
from accelerate.errors import ConfigError
from accelerate.strategies.deepspeed.library import built

__all__ = ["adapt_section", "map_pytorch_optim_to_deepspeed", "on_cpu", "with_kernels"]

_OFFLOADED = {"cpu", "nvme"}
_KERNELS = {"Adam": "cpu_adam", "AdamW": "cpu_adam", "Adagrad": "cpu_adagrad", "Lion": "cpu_lion"}


def on_cpu(config: dict[str, Any]) -> bool:
    """Whether optimizer state is kept outside the device."""
    zero = config.get("zero_optimization") or {}
    return (zero.get("offload_optimizer") or {}).get("device") in _OFFLOADED


def _compiled(operator: str, device_type: str) -> bool:
    """Whether DeepSpeed's kernel can be had at once, or (on a machine with GPUs) is compiled as a matter of course."""
    if built(operator):
        return True
    if device_type == "cpu":
        return False
    from deepspeed.ops.op_builder.builder import get_default_compute_capabilities  # noqa: F401
    from torch.utils.cpp_extension import CUDA_HOME

    return CUDA_HOME is not None


def adapt_section(config: dict[str, Any], device_type: str) -> None:
    """Lets torch's Adam do what the section ``optimizer`` asks for, where DeepSpeed's kernel is not there."""
    section = config.get("optimizer")
    if not isinstance(section, dict) or str(section.get("type")).lower() not in ("adam", "adamw"):
        return
    kernel = "cpu_adam" if on_cpu(config) else "fused_adam"
    params = section.setdefault("params", {})
    if "torch_adam" in params or _compiled(kernel, device_type):
        return
    notice(
        f"DeepSpeed's own {section['type']} ({kernel}) is not compiled on this machine: torch's is used. "
        "Install DeepSpeed with its operators for the faster one."
    )
    params["torch_adam"] = True


def with_kernels(optimizer: torch.optim.Optimizer, config: dict[str, Any], device_type: str) -> torch.optim.Optimizer:
    """The optimizer for offloaded state: DeepSpeed's where its kernel is there, else the one given."""
    if not on_cpu(config):
        return optimizer
    kernel = _KERNELS.get(type(optimizer).__name__)
    if config.get("zero_force_ds_cpu_optimizer") is True and (kernel is None or not _compiled(kernel, device_type)):
        raise ConfigError(
            "zero_force_ds_cpu_optimizer is true in DeepSpeed's configuration, but DeepSpeed has no compiled CPU "
            f"version of {type(optimizer).__name__} on this machine. Remove the key, or install DeepSpeed with its "
            "operators."
        )
    if kernel is not None and not optimizer.state and _compiled(kernel, device_type):
        return map_pytorch_optim_to_deepspeed(optimizer)  # type: ignore[no-any-return]
    config["zero_force_ds_cpu_optimizer"] = False
    notice(
        f"Optimizer state is offloaded, and {type(optimizer).__name__} runs on the CPU as torch has it: DeepSpeed has "
        "no compiled version of it on this machine, which would be faster."
    )
    return optimizer


def map_pytorch_optim_to_deepspeed(optimizer: torch.optim.Optimizer) -> Any:
    """DeepSpeed's CPU version of a torch Adam, AdamW, Adagrad or Lion, with the same groups and settings; any other
    optimizer comes back as it is. Compiles the kernel where it is not there yet, which takes minutes."""
    name = type(optimizer).__name__
    if name not in _KERNELS:
        return optimizer
    groups = [{key: value for key, value in group.items() if key in _TAKEN[name]} for group in optimizer.param_groups]
    if name == "Adagrad":
        from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad

        return DeepSpeedCPUAdagrad(groups)
    if name == "Lion":
        from deepspeed.ops.lion import DeepSpeedCPULion

        return DeepSpeedCPULion(groups)
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    return DeepSpeedCPUAdam(groups, adamw_mode=name == "AdamW")


_SHARED = {"params", "lr", "weight_decay", "initial_lr"}
_TAKEN = {
    "Adam": _SHARED | {"betas", "eps"},
    "AdamW": _SHARED | {"betas", "eps"},
    "Adagrad": _SHARED | {"eps"},
    "Lion": _SHARED | {"betas"},
}
