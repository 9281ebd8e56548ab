"""What a configuration is when nobody was asked: what this machine has."""

from __future__ import annotations

from dataclasses import replace

from accelerate.config.run import RunConfig

__all__ = ["DISTRIBUTED_WORDS", "machine_config"]

DISTRIBUTED_WORDS = {
    "cuda": "MULTI_GPU",
    "npu": "MULTI_NPU",
    "mlu": "MULTI_MLU",
    "sdaa": "MULTI_SDAA",
    "musa": "MULTI_MUSA",
    "xpu": "MULTI_XPU",
    "hpu": "MULTI_HPU",
    "neuron": "MULTI_NEURON",
}
"""What files call plain data parallelism on a type of device."""


def machine_config(device_type: str, count: int, mixed_precision: str = "no") -> RunConfig:
    """One process for each of ``count`` devices, data parallel where there are several."""
    config = RunConfig(mixed_precision=mixed_precision, num_processes=max(count, 1), gpu_ids="all" if count else None)
    if count > 1:
        word = DISTRIBUTED_WORDS.get(device_type, "MULTI_GPU")
        config = replace(config, multi_gpu=True, distributed_type=word)
    return config
