"""The list of what a checkpoint consists of: sizes and checksums of its files, and what each is for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from accelerate.errors import CheckpointDamagedError, CheckpointError

__all__ = ["FORMAT", "MANIFEST", "FileRecord", "Manifest"]

MANIFEST = "accelerate_manifest.json"
FORMAT = 1
_HEAD = '{"xxh3_128": "%s",\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """One file: its path below the checkpoint with forward slashes, its size in bytes, its digest in hexadecimal."""

    path: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything that belongs to one checkpoint. ``content`` is what the drivers wrote about it (JSON values)."""

    id: str
    files: tuple[FileRecord, ...]
    content: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The manifest as JSON text whose first line holds the checksum of all the others."""
        body = {
            "format": FORMAT,
            "id": self.id,
            "files": {r.path: [r.size, r.digest] for r in sorted(self.files, key=lambda r: r.path)},
            "content": self.content,
        }
        rest = ('"manifest": ' + json.dumps(body, indent=1) + "}\n").encode()
        return (_HEAD % xxhash.xxh3_128_hexdigest(rest)).encode() + rest

    @classmethod
    def decode(cls, data: bytes, where: Path) -> Manifest:
        """Reads what :meth:`encode` wrote; ``where`` is named in messages.

        Raises:
            CheckpointDamagedError: a byte differs from what was written.
            CheckpointError: it was written by a newer version of the library.
        """
        head, newline, rest = data.partition(b"\n")
        if not newline or head + newline != (_HEAD % xxhash.xxh3_128_hexdigest(rest)).encode():
            raise CheckpointDamagedError(
                f"The manifest {where} does not have its recorded checksum: it was changed or cut short. "
                "Nothing was loaded; take another checkpoint."
            )
        body = json.loads(data)["manifest"]
        if body["format"] > FORMAT:
            raise CheckpointError(
                f"The manifest {where} has format {body['format']}, this version reads up to {FORMAT}. "
                "Load it with the version of the library that wrote it, or a newer one."
            )
        files = tuple(FileRecord(path=p, size=size, digest=digest) for p, (size, digest) in body["files"].items())
        return cls(id=body["id"], files=files, content=body["content"])

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """The manifest of the checkpoint in ``folder``; None where there is none. Raises as :meth:`decode`."""
        path = folder / MANIFEST
        try:
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return cls.decode(data, path)

    def size_of(self, paths: Iterable[str]) -> int:
        """The bytes that the files at ``paths`` have together."""
        wanted = set(paths)
        return sum(record.size for record in self.files if record.path in wanted)
