"""Files that are hashed while they are written, and the same hash of a file that is there.

The digest of a file of up to 32 MiB is its xxh3-128. That of a larger one is the xxh3-128 of the digests of its parts
of 32 MiB, one after the other, so that several threads can verify one file.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import xxhash

__all__ = ["CHUNK", "HashingWriter", "combined", "digest_of", "digest_part", "sync_folder"]

# Small enough that what was hashed is still in the processor's cache when it is written.
_BLOCK = 1 << 20
CHUNK = 32 << 20


def combined(parts: Sequence[bytes]) -> str:
    """The digest of a file from those of its parts of ``CHUNK`` bytes (one, even where the file is empty)."""
    return parts[0].hex() if len(parts) == 1 else xxhash.xxh3_128_hexdigest(b"".join(parts))


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
        self._parts: list[bytes] = []
        self._hash = xxhash.xxh3_128()
        self._left = CHUNK
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115  # closed by close()

    def write(self, data: Any) -> int:
        """Writes all of ``data``, anything that has a contiguous buffer; returns its size in bytes."""
        view = memoryview(data).cast("B")
        start = 0
        while start < view.nbytes:
            if self._left == 0:
                self._parts.append(self._hash.digest())
                self._hash.reset()
                self._left = CHUNK
            block = view[start : start + min(_BLOCK, self._left)]
            self._hash.update(block)
            self._left -= block.nbytes
            start += block.nbytes
            while block:
                block = block[self._file.write(block) :]
        self.size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Nothing is held back, so there is nothing to do."""

    def digest(self) -> str:
        """The digest of what was written so far, in hexadecimal."""
        return combined([*self._parts, self._hash.digest()])

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


def digest_part(path: Path, start: int, size: int) -> bytes:
    """The digest of one part of a file, read through a memory map; ``start`` is a multiple of ``CHUNK``.

    Raises:
        OSError: it cannot be read, or has become shorter.
    """
    if size == 0:
        return xxhash.xxh3_128_digest(b"")
    with open(path, "rb") as file:
        try:
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ, offset=start)
        except ValueError as error:
            raise OSError(f"it became shorter: {error}") from error
        with mapped, memoryview(mapped) as view:
            return xxhash.xxh3_128_digest(view)


def digest_of(path: Path, *, durable: bool = False) -> tuple[int, str]:
    """(size, digest) of a file. ``durable`` also makes it durable."""
    size = path.stat().st_size
    parts = [digest_part(path, start, min(CHUNK, size - start)) for start in range(0, max(size, 1), CHUNK)]
    if durable:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    return size, combined(parts)


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
