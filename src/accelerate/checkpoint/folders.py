"""Folders of checkpoints that are being written: locks, what a death left behind, and finishing a commit."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from types import TracebackType

from accelerate.checkpoint.manifest import MANIFEST, Manifest
from accelerate.checkpoint.streams import sync_folder
from accelerate.errors import CheckpointDamagedError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["FolderLock", "claim", "journals", "roll_forward", "sweep"]

# Where folders cannot be locked, one that nobody touched for so long (seconds) belongs to nobody.
_ABANDONED = 86400.0
_UNCLAIMED = ".new-"


class FolderLock:
    """A lock on a folder that the system gives back when the process dies. ``held`` says whether it was had.

    Waits up to ``wait`` seconds. Where folders cannot be locked, an old folder counts as had and a young one as not.
    """

    def __init__(self, folder: Path, wait: float = 0.0) -> None:
        self.held = False
        self._fd: int | None = None
        deadline = time.monotonic() + wait
        try:
            self._fd = os.open(folder, os.O_RDONLY)
            while not self._try(folder):
                if time.monotonic() >= deadline:
                    break
                time.sleep(0.01)
        except FileNotFoundError:
            pass
        except OSError:
            self.held = _untouched(folder, _ABANDONED)
        if not self.held:
            self._close()

    def _try(self, folder: Path) -> bool:
        if fcntl is None or self._fd is None:
            self.held = _untouched(folder, _ABANDONED)
            return True
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self.held = True
        return True

    def _close(self) -> None:
        if self._fd is not None:
            if fcntl is not None and self.held:
                # A process forked meanwhile (a loader's worker) holds the lock too, and would keep it for its life.
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = None

    def release(self) -> None:
        """Gives the lock back."""
        self._close()
        self.held = False

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _untouched(folder: Path, seconds: float) -> bool:
    try:
        return time.time() - folder.stat().st_mtime > seconds
    except OSError:
        return False


def claim(folder: Path) -> FolderLock:
    """Makes a new folder that is locked from the instant it can be seen under its name."""
    hidden = folder.with_name(f"{_UNCLAIMED}{folder.name.lstrip('.')}")
    while True:
        hidden.mkdir()
        lock = FolderLock(hidden, wait=1.0)
        try:
            os.rename(hidden, folder)
        except FileNotFoundError:
            lock.release()  # somebody who sweeps came between making and locking
            continue
        return lock


def sweep(parent: Path, pattern: str) -> None:
    """Removes folders below ``parent`` that match and that no living process is writing."""
    for path in parent.glob(pattern):
        with FolderLock(path) as lock:
            if lock.held:
                shutil.rmtree(path, ignore_errors=True)
    for path in parent.glob(f"{_UNCLAIMED}{pattern.lstrip('.')}"):
        with FolderLock(path) as lock:
            if lock.held:
                try:
                    path.rmdir()
                except OSError:
                    pass  # it has become somebody's meanwhile


def journals(target: Path) -> list[Path]:
    """The folders inside ``target`` that hold, or held, a checkpoint to be moved over it, oldest first."""
    return sorted(target.glob(".accelerate.tmp-*"), key=lambda path: path.stat().st_mtime)


def roll_forward(target: Path, journal: Path, *, durable: bool) -> None:
    """Moves a complete checkpoint out of ``journal`` over the one in ``target``. May be called again after a death.

    Files of ``target`` that neither checkpoint lists are left alone.
    """
    new = Manifest.read(journal)
    if new is None:
        raise FileNotFoundError(f"{journal} holds no complete checkpoint")
    try:
        old = Manifest.read(target)
    except CheckpointDamagedError:
        old = None
    folders = {target}
    for record in new.files:
        source, place = journal / record.path, target / record.path
        if not source.exists():
            continue  # moved before the death that we come after
        for parent in reversed(place.relative_to(target).parents):
            _make_folder(target / parent)
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        os.replace(source, place)
        folders.add(place.parent)
    kept = {record.path for record in new.files}
    for record in old.files if old is not None else ():
        if record.path not in kept:
            _remove(target, record.path)
    if durable:
        for folder in folders:
            sync_folder(folder)
    os.replace(journal / MANIFEST, target / MANIFEST)
    if durable:
        sync_folder(target)
    shutil.rmtree(journal, ignore_errors=True)


def _make_folder(path: Path) -> None:
    if not path.is_dir():
        if path.exists():
            path.unlink()
        path.mkdir()


def _remove(target: Path, name: str) -> None:
    path = target / name
    try:
        path.unlink()
    except OSError:
        return
    for parent in path.relative_to(target).parents:
        if parent == Path("."):
            return
        try:
            (target / parent).rmdir()
        except OSError:
            return
