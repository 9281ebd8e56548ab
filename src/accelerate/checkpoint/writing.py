"""Turns pieces into files, several at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from accelerate.checkpoint.objects import write_object
from accelerate.checkpoint.parts import Piece
from accelerate.checkpoint.store import Transaction
from accelerate.checkpoint.tensors import write_tensors

__all__ = ["bytes_in", "write_pieces"]


def write_pieces(transaction: Transaction, pieces: Sequence[Piece], threads: int = 4) -> None:
    """Writes every piece into the transaction, the large ones first and side by side.

    Raises:
        CheckpointError: a piece cannot be written in its form.
        OSError: the disk refuses.
    """
    order = sorted(pieces, key=lambda piece: -bytes_in(piece.value))
    if len(order) < 2:
        for piece in order:
            _write(transaction, piece)
        return
    with ThreadPoolExecutor(min(threads, len(order)), thread_name_prefix="accelerate-write") as pool:
        futures = [pool.submit(_write, transaction, piece) for piece in order]
        try:
            for future in futures:
                future.result()
        finally:
            for future in futures:
                future.cancel()


def _write(transaction: Transaction, piece: Piece) -> None:
    with transaction.open(piece.file) as file:
        if piece.form == "tensors":
            write_tensors(file, piece.value, piece.metadata)
        elif piece.form == "json":
            file.write((json.dumps(piece.value, indent=2) + "\n").encode())
        elif piece.form == "bytes":
            file.write(piece.value)
        else:
            write_object(file, piece.value, piece.file)


def bytes_in(value: Any) -> int:
    """The bytes of the tensors in a nested value."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(map(bytes_in, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(bytes_in, value))
    return 0
