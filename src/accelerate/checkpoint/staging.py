"""Copies of a checkpoint's tensors in host memory, so that training goes on while they are written."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch

from accelerate.checkpoint.objects import portable
from accelerate.checkpoint.parts import Piece
from accelerate.checkpoint.room import room
from accelerate.checkpoint.writing import bytes_in

__all__ = ["Staging"]

_ALIGN = 64
_LARGE = 1 << 18  # bytes that are worth a thread


class Staging:
    """One region of host memory that copies are made into, kept from one save to the next.

    The copies of one ``take`` are overwritten by the next, so at most one may be in use.
    """

    def __init__(self) -> None:
        self._region: torch.Tensor | None = None
        self._used = 0

    def take(self, pieces: Sequence[Piece]) -> list[Piece]:
        """The pieces with every tensor copied; nothing in them changes any more. Returns once the copies are there."""
        plain = [
            replace(piece, value=portable(piece.value, piece.file)) if piece.form == "object" else piece
            for piece in pieces
        ]
        tensors = sum(_count(piece.value) for piece in plain)
        on_gpu = any(_on_gpu(piece.value) for piece in plain)
        self._reserve(sum(bytes_in(piece.value) for piece in plain) + tensors * _ALIGN, pinned=on_gpu)
        memo: dict[Any, torch.Tensor] = {}
        devices: set[torch.device] = set()
        with ThreadPoolExecutor(2, thread_name_prefix="accelerate-copy") as pool:
            copied = [replace(piece, value=self._copy(piece.value, memo, devices, pool)) for piece in plain]
        for device in devices:
            getattr(torch, device.type).synchronize(device)
        return copied

    def release(self) -> None:
        """Gives the memory back."""
        self._region = None

    def _reserve(self, size: int, *, pinned: bool) -> None:
        self._used = 0
        if self._region is None or self._region.numel() < size:
            self._region = None  # before the new one, so that they are not both there
            self._region = torch.empty(size, dtype=torch.uint8, pin_memory=True) if pinned else room(size)

    def _copy(self, value: Any, memo: dict[Any, torch.Tensor], devices: set[torch.device], pool: Executor) -> Any:
        if isinstance(value, torch.Tensor):
            # Tied tensors stay tied, so that torch.save writes them once.
            key = (value.device, value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
            if value.numel() == 0 or key not in memo:
                memo[key] = self._place(value, devices, pool)
            return memo[key]
        if isinstance(value, dict):
            return type(value)((key, self._copy(item, memo, devices, pool)) for key, item in value.items())
        if isinstance(value, (list, tuple)):
            return type(value)(self._copy(item, memo, devices, pool) for item in value)
        return value

    def _place(self, tensor: torch.Tensor, devices: set[torch.device], pool: Executor) -> torch.Tensor:
        source = tensor.detach()
        if tensor.numel() == 0 or self._region is None or tensor.layout is not torch.strided:
            return source.clone()
        size = tensor.numel() * tensor.element_size()
        there = self._region[self._used : self._used + size].view(tensor.dtype).view(tensor.shape)
        self._used += -(-size // _ALIGN) * _ALIGN
        if tensor.device.type not in ("cpu", "xla"):
            devices.add(tensor.device)
        if tensor.device.type == "cpu" and size > _LARGE:
            pool.submit(there.copy_, source)
        else:
            there.copy_(source, non_blocking=tensor.device.type != "cpu")
        return there


def _on_gpu(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_cuda
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return any(map(_on_gpu, items))


def _count(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_count, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_count, value))
    return 1 if isinstance(value, torch.Tensor) else 0
