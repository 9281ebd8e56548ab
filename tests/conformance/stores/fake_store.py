"""A checkpoint store that remembers in the process what is complete, and promises nothing about its death."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from accelerate.checkpoint import layout
from accelerate.checkpoint.manifest import FileRecord, Manifest
from accelerate.checkpoint.store import CheckpointStore, Entry, Transaction
from accelerate.checkpoint.streams import HashingWriter, digest_of
from accelerate.errors import CheckpointDamagedError, CheckpointError

__all__ = ["FakeStore"]


class FakeTransaction(Transaction):
    """Files in a folder aside, copied to the target by ``commit``."""

    def __init__(self, store: FakeStore, target: Path, folder: Path, id: str, *, owner: bool) -> None:
        self.store, self.target, self.folder, self.id, self.owner = store, target, folder, id, owner
        self.records: dict[str, FileRecord] = {}

    def open(self, name: str) -> HashingWriter:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)

        def closed(writer: HashingWriter) -> None:
            self.records[name] = FileRecord(path=name, size=writer.size, digest=writer.digest())

        return HashingWriter(path, durable=False, closed=closed)

    def adopt(self, accept: Callable[[str], bool] = lambda name: True) -> list[FileRecord]:
        made = []
        for path in sorted(path for path in self.folder.rglob("*") if path.is_file()):
            name = path.relative_to(self.folder).as_posix()
            if name not in self.records and accept(name):
                size, digest = digest_of(path)
                made.append(FileRecord(path=name, size=size, digest=digest))
        self.add(made)
        return made

    def add(self, records: Iterable[FileRecord]) -> None:
        self.records.update((record.path, record) for record in records)

    def commit(self, content: Mapping[str, Any]) -> Path:
        if not self.owner:
            raise CheckpointError(f"{self.target} was begun by somebody else.")
        self.adopt()
        shutil.copytree(self.folder, self.target, dirs_exist_ok=True)
        files = tuple(self.records.values())
        self.store.complete[self.target] = Manifest(id=self.id, files=files, content=dict(content))
        shutil.rmtree(self.folder)
        self.owner = False
        return self.target

    def abort(self) -> None:
        if self.owner:
            shutil.rmtree(self.folder, ignore_errors=True)


class FakeStore(CheckpointStore):
    """``aside`` is a folder for what is not complete; ``complete`` holds the manifests of the rest."""

    def __init__(self, aside: Path) -> None:
        self.durable = False
        self.aside = aside
        self.complete: dict[Path, Manifest] = {}

    def begin(self, target: Path) -> Transaction:
        id = uuid.uuid4().hex
        (self.aside / id).mkdir(parents=True)
        return FakeTransaction(self, target, self.aside / id, id, owner=True)

    def join(self, folder: Path, id: str) -> Transaction:
        if not folder.is_dir():
            raise CheckpointError(f"There is no folder {folder}.")
        return FakeTransaction(self, folder, folder, id, owner=False)

    def settle(self, path: Path) -> None:
        """Nothing here is ever half done."""

    def manifest(self, path: Path) -> Manifest | None:
        return self.complete.get(path)

    def verify(self, path: Path, manifest: Manifest, *, describe: Callable[[str], str] = str) -> None:
        def sound(record: FileRecord) -> bool:
            file = path / record.path
            return file.is_file() and digest_of(file) == (record.size, record.digest)

        faults = [describe(record.path) for record in manifest.files if not sound(record)]
        if faults:
            raise CheckpointDamagedError(f"{path}: {', '.join(faults)}")

    def entries(self, root: Path) -> list[Entry]:
        numbers = {path: layout.checkpoint_number(path.name) for path in self.complete if path.parent == root}
        found = [Entry(number=number, path=path) for path, number in numbers.items() if number is not None]
        return sorted(found, key=lambda entry: entry.number)

    def prune(self, root: Path, limit: int) -> list[Path]:
        removed = [entry.path for entry in self.entries(root)[: -max(1, limit)]]
        for path in removed:
            del self.complete[path]
            shutil.rmtree(path)
        return removed
