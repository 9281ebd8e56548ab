"""New host memory for large tensors."""

from __future__ import annotations

import mmap
from typing import Any

import torch

__all__ = ["copied", "room"]

_LARGE = 4 << 20
_system: Any = mmap  # not every system has every name


def room(size: int) -> torch.Tensor:
    """``size`` bytes, in large pages where the system has them: touching small ones for the first time takes several
    times as long as the copy that goes into them."""
    if size < _LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(size, dtype=torch.uint8)
    memory = mmap.mmap(-1, size, flags=_system.MAP_PRIVATE | _system.MAP_ANONYMOUS)
    try:
        memory.madvise(_system.MADV_HUGEPAGE)
    except OSError:
        pass  # the system was built without them
    return torch.frombuffer(memory, dtype=torch.uint8)


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in memory of its own."""
    size = tensor.numel() * tensor.element_size()
    if size < _LARGE or type(tensor) is not torch.Tensor or not tensor.is_cpu or not tensor.is_contiguous():
        return tensor.clone()
    return room(size).view(tensor.dtype).view(tensor.shape).copy_(tensor)
