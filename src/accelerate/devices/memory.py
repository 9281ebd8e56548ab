"""Giving memory back, and recognising that there was too little."""

from __future__ import annotations

import gc
from typing import Any

import torch

from accelerate.devices.registry import kinds

__all__ = ["clear_device_cache", "release_memory", "should_reduce_batch_size"]

_SIGNS = ("out of memory", "CUDNN_STATUS_NOT_SUPPORTED", "can't allocate memory", "CUDA_ERROR_OUT_OF_MEMORY")


def clear_device_cache(garbage_collection: bool = False) -> None:
    """Gives the blocks that torch keeps for later back to the devices; ``garbage_collection`` runs Python's first."""
    if garbage_collection:
        gc.collect()
    for backend in kinds():
        if backend.is_available():
            backend.memory.empty_cache()


def release_memory(*objects: Any) -> list[None]:
    """As many None as there are arguments, to be assigned to their names: ``a, b = release_memory(a, b)``. Then what
    nobody holds any more is collected, and the devices' caches are emptied."""
    count = len(objects)
    del objects
    clear_device_cache(garbage_collection=True)
    return [None] * count


def should_reduce_batch_size(exception: BaseException) -> bool:
    """Whether this says that memory, of a device or of the machine, ran out."""
    if isinstance(exception, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(exception, RuntimeError) and any(sign in str(exception) for sign in _SIGNS)
