"""Checkpoints in folders of a file system.

A new checkpoint is written into a folder of its own beside the target and renamed into place. Where the target is
there already, perhaps with files of the user's own or as a mount point, it is written into a folder *inside* the
target, whose manifest is the point of no return; then its files are moved over the old ones, a step that anybody who
comes later can finish.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from accelerate.checkpoint import layout
from accelerate.checkpoint.folders import FolderLock, claim, journals, roll_forward, sweep
from accelerate.checkpoint.manifest import MANIFEST, FileRecord, Manifest
from accelerate.checkpoint.store import CheckpointStore, Entry, Transaction
from accelerate.checkpoint.streams import CHUNK, HashingWriter, combined, digest_of, digest_part, sync_folder
from accelerate.errors import CheckpointDamagedError, CheckpointError

__all__ = ["LocalStore", "LocalTransaction"]

_OCCUPIED = {errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.ENOTDIR, errno.EXDEV, errno.EACCES, errno.EPERM}


class LocalTransaction(Transaction):
    """A folder that becomes a checkpoint. ``lock`` is None for a rank that only takes part."""

    def __init__(self, target: Path, folder: Path, id: str, lock: FolderLock | None, *, durable: bool) -> None:
        self.id = id
        self.target = target
        self.folder = folder
        self._lock = lock
        self._durable = durable
        self._records: dict[str, FileRecord] = {}
        self._guard = threading.Lock()
        self._open = True

    def open(self, name: str) -> HashingWriter:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return HashingWriter(path, durable=self._durable, closed=lambda w: self._record(name, w.size, w.digest()))

    def _record(self, name: str, size: int, digest: str) -> FileRecord:
        record = FileRecord(path=name, size=size, digest=digest)
        with self._guard:
            self._records[name] = record
        return record

    def adopt(self, accept: Callable[[str], bool] = lambda name: True) -> list[FileRecord]:
        made = []
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            if path.is_file() and name not in self._records and name != MANIFEST and accept(name):
                made.append(self._record(name, *digest_of(path, durable=self._durable)))
        return made

    def add(self, records: Iterable[FileRecord]) -> None:
        with self._guard:
            self._records.update((record.path, record) for record in records)

    def commit(self, content: Mapping[str, Any]) -> Path:
        if self._lock is None:
            raise CheckpointError(f"Only the process that began the checkpoint {self.target} can commit it.")
        try:
            self.adopt()
            self._write_manifest(content)
            self._place()
        except OSError as error:
            self.abort()
            raise CheckpointError(
                f"The checkpoint {self.target} could not be put in place: {error}. Nothing there was changed."
            ) from error
        self._close()
        return self.target

    def _write_manifest(self, content: Mapping[str, Any]) -> None:
        if self._durable:
            for path in self.folder.rglob("*"):
                if path.is_dir():
                    sync_folder(path)
        manifest = Manifest(id=self.id, files=tuple(self._records.values()), content=dict(content))
        draft = self.folder / f"{MANIFEST}.draft"
        with HashingWriter(draft, durable=self._durable) as file:
            file.write(manifest.encode())
        # In a folder inside the target this rename is the commit.
        os.replace(draft, self.folder / MANIFEST)
        if self._durable:
            sync_folder(self.folder)

    def _place(self) -> None:
        if self.folder.parent == self.target:
            roll_forward(self.target, self.folder, durable=self._durable)
            return
        try:
            os.rename(self.folder, self.target)
        except OSError as error:
            if error.errno not in _OCCUPIED or not self.target.is_dir():
                raise
            # Something came to be at the target meanwhile: go on inside it.
            inside = self.target / f".accelerate.tmp-{self.id}"
            os.rename(self.folder, inside)
            self.folder = inside
            roll_forward(self.target, inside, durable=self._durable)
        if self._durable:
            sync_folder(self.target.parent)

    def _close(self) -> None:
        self._open = False
        if self._lock is not None:
            self._lock.release()

    def abort(self) -> None:
        if self._open:
            if self._lock is not None:
                shutil.rmtree(self.folder, ignore_errors=True)
            self._close()


def _fault(record: FileRecord, parts: Sequence[Future[bytes]]) -> str | None:
    try:
        digest = combined([part.result() for part in parts])
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return None if digest == record.digest else "differs from its checksum"


class LocalStore(CheckpointStore):
    """Checkpoints as folders. ``durable=False`` leaves it to the system when bytes reach the disk: a checkpoint then
    survives the death of the process, not that of the machine."""

    def __init__(self, *, durable: bool = True, threads: int | None = None) -> None:
        self.durable = durable
        self.threads = threads or min(8, os.cpu_count() or 1)

    def begin(self, target: Path) -> LocalTransaction:
        target = Path(os.path.abspath(target))
        id = uuid.uuid4().hex[:12]
        try:
            self.settle(target)
            if target.is_dir() and any(target.iterdir()):
                folder = target / f".accelerate.tmp-{id}"
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                sweep(target.parent, f".{target.name}.tmp-*")
                if layout.checkpoint_number(target.name) is not None:
                    sweep(target.parent, ".checkpoint_*.tmp-*")
                folder = target.parent / f".{target.name}.tmp-{id}"
            lock = claim(folder)
        except OSError as error:
            raise CheckpointError(
                f"No checkpoint can be written at {target}: {error}. Give save_state a folder that can be written."
            ) from error
        return LocalTransaction(target, folder, id, lock, durable=self.durable)

    def join(self, folder: Path, id: str) -> LocalTransaction:
        if not folder.is_dir():
            raise CheckpointError(
                f"The main process writes the checkpoint into {folder}, which this rank does not see. Ranks that each "
                "hold a part of the state need a file system that they share."
            )
        return LocalTransaction(folder, folder, id, None, durable=self.durable)

    def settle(self, path: Path) -> None:
        if not path.is_dir():
            return
        if not os.access(path, os.W_OK):
            return  # whoever reads only finds what is there
        for journal in journals(path):
            with FolderLock(journal, wait=60.0) as lock:
                if not lock.held or not journal.exists():
                    continue
                if (journal / MANIFEST).exists():
                    roll_forward(path, journal, durable=self.durable)
                else:
                    shutil.rmtree(journal, ignore_errors=True)
        sweep(path, ".accelerate.tmp-*")

    def manifest(self, path: Path) -> Manifest | None:
        return Manifest.read(path)

    def verify(self, path: Path, manifest: Manifest, *, describe: Callable[[str], str] = str) -> None:
        def parts(record: FileRecord) -> list[Future[bytes]] | str:
            file = path / record.path
            try:
                size = file.stat().st_size
            except OSError as error:
                return f"cannot be read: {error.strerror or error}"
            if size != record.size:
                return f"has {size} bytes, {record.size} were written"
            starts = range(0, max(size, 1), CHUNK)
            return [pool.submit(digest_part, file, start, min(CHUNK, size - start)) for start in starts]

        faults = []
        with ThreadPoolExecutor(self.threads, thread_name_prefix="accelerate-verify") as pool:
            for record, found in [(record, parts(record)) for record in manifest.files]:
                fault = found if isinstance(found, str) else _fault(record, found)
                if fault is not None:
                    faults.append(f"{describe(record.path)} {fault}")
        if faults:
            raise CheckpointDamagedError(
                f"The checkpoint {path} is damaged; nothing was loaded.\n  " + "\n  ".join(sorted(faults))
            )

    def entries(self, root: Path) -> list[Entry]:
        found = []
        for path in root.iterdir() if root.is_dir() else ():
            number = layout.checkpoint_number(path.name)
            if number is not None and ((path / MANIFEST).exists() or layout.looks_like_checkpoint(path)):
                found.append(Entry(number=number, path=path))
        return sorted(found, key=lambda entry: entry.number)

    def prune(self, root: Path, limit: int) -> list[Path]:
        removed = []
        for entry in self.entries(root)[: -max(1, limit)]:
            # Renamed first: a folder that is half deleted must not look like a checkpoint.
            gone = root / f".{entry.path.name}.old-{uuid.uuid4().hex[:12]}"
            os.rename(entry.path, gone)
            removed.append(entry.path)
        if removed and self.durable:
            sync_folder(root)
        sweep(root, ".checkpoint_*.old-*")
        return removed
