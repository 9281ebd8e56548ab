"""Files that are hashed while they are written, and the same hash of a file that is there."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import xxhash

__all__ = ["HashingWriter", "digest_of", "sync_folder"]

# Small enough that what was hashed is still in the processor's cache when it is written.
_BLOCK = 1 << 20
_MAPPED_BLOCK = 64 << 20


class HashingWriter:
    """A new file opened for writing once, front to back.

    ``size`` and ``digest()`` are those of what was written so far. ``close`` makes it durable where ``durable``, then
    calls ``closed`` with the writer; leaving a ``with`` block by an exception closes the file and calls nothing.
    """

    def __init__(
        self, path: Path, *, durable: bool = True, closed: Callable[[HashingWriter], object] | None = None
    ) -> None:
        self.path = path
        self.size = 0
        self._durable = durable
        self._closed = closed
        self._hash = xxhash.xxh3_128()
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115  # closed by close()

    def write(self, data: Any) -> int:
        """Writes all of ``data``, anything that has a contiguous buffer; returns its size in bytes."""
        view = memoryview(data).cast("B")
        for start in range(0, view.nbytes, _BLOCK):
            block = view[start : start + _BLOCK]
            self._hash.update(block)
            while block:
                block = block[self._file.write(block) :]
        self.size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Nothing is held back, so there is nothing to do."""

    def digest(self) -> str:
        """The xxh3-128 of what was written so far, in hexadecimal."""
        return self._hash.hexdigest()

    def close(self) -> None:
        if self._file.closed:
            return
        with self._file:
            if self._durable:
                os.fsync(self._file.fileno())
        if self._closed is not None:
            self._closed(self)

    def __enter__(self) -> HashingWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()


def digest_of(path: Path, *, durable: bool = False) -> tuple[int, str]:
    """(size, xxh3-128) of a file, read through a memory map. ``durable`` also makes it durable."""
    state = xxhash.xxh3_128()
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
                for start in range(0, size, _MAPPED_BLOCK):
                    with view[start : start + _MAPPED_BLOCK] as block:
                        state.update(block)
        if durable:
            os.fsync(file.fileno())
    return size, state.hexdigest()


def sync_folder(folder: Path) -> None:
    """Makes the entries of a folder durable, where the file system can."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        return  # Windows opens no folders
    try:
        os.fsync(fd)
    except OSError:
        pass  # some network file systems refuse to sync a folder, and have nothing to sync
    finally:
        os.close(fd)
