"""WHERE and how a checkpoint is kept: the seam between the drivers and a place for files.

The promise: whatever instant the process dies at, every checkpoint that was complete before is still complete, and one
that is not complete is never taken for one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate.checkpoint.manifest import FileRecord, Manifest
from accelerate.checkpoint.streams import HashingWriter

__all__ = ["CheckpointStore", "Entry", "Transaction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A numbered checkpoint that is in a store."""

    number: int
    path: Path


class Transaction(ABC):
    """One checkpoint being written. Files go below ``folder``; ``commit`` makes them the checkpoint ``target``."""

    id: str
    folder: Path
    target: Path

    @abstractmethod
    def open(self, name: str) -> HashingWriter:
        """A new file ``name`` (forward slashes), recorded when it is closed. Threads may write files at once."""

    @abstractmethod
    def adopt(self, accept: Callable[[str], bool] = lambda name: True) -> list[FileRecord]:
        """Records files that others wrote below ``folder`` and that are not recorded yet, and makes them durable.

        ``accept`` takes the path below ``folder``. Returns the records it made.
        """

    @abstractmethod
    def add(self, records: Iterable[FileRecord]) -> None:
        """Takes over records that another rank made of files of this checkpoint."""

    @abstractmethod
    def commit(self, content: Mapping[str, Any]) -> Path:
        """Writes the manifest and puts the checkpoint in its place, at once and durably. Returns ``target``.

        Raises:
            CheckpointError: it could not be written; nothing is left of it and nothing else was changed.
        """

    @abstractmethod
    def abort(self) -> None:
        """Throws away what was written. Does nothing after ``commit``."""


class CheckpointStore(ABC):
    """A place for checkpoints. ``durable``: a commit returns when bytes are on the disk."""

    durable: bool = True

    @abstractmethod
    def begin(self, target: Path) -> Transaction:
        """Starts a checkpoint that will be at ``target``, and removes what earlier tries that died left there."""

    @abstractmethod
    def join(self, folder: Path, id: str) -> Transaction:
        """Another rank's transaction, to write and record files below its ``folder``; only its owner commits.

        Raises:
            CheckpointError: this rank does not see the folder.
        """

    @abstractmethod
    def settle(self, path: Path) -> None:
        """Finishes a commit at ``path`` that died half-way, so that readers find one whole checkpoint."""

    @abstractmethod
    def manifest(self, path: Path) -> Manifest | None:
        """The manifest of a checkpoint; None where it has none (it was written by something else).

        Raises:
            CheckpointDamagedError: the manifest itself was changed.
        """

    @abstractmethod
    def verify(self, path: Path, manifest: Manifest, *, describe: Callable[[str], str] = str) -> None:
        """Compares every file with its recorded size and checksum. ``describe`` says what a file is for.

        Raises:
            CheckpointDamagedError: files are missing or differ; each is named.
        """

    @abstractmethod
    def entries(self, root: Path) -> list[Entry]:
        """The numbered checkpoints below ``root``, oldest first."""

    @abstractmethod
    def prune(self, root: Path, limit: int) -> list[Path]:
        """Removes the oldest numbered checkpoints until ``limit`` (at least one) are left; returns those removed."""
