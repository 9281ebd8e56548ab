"""Checkpoints in folders: whole, or not there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accelerate.checkpoint import layout
from accelerate.checkpoint.folders import FolderLock, claim
from accelerate.checkpoint.local_store import LocalStore
from accelerate.checkpoint.manifest import MANIFEST, FileRecord, Manifest
from accelerate.checkpoint.streams import digest_of
from accelerate.errors import CheckpointDamagedError, CheckpointError

store = LocalStore(durable=False, threads=2)


def write(target: Path, files: dict[str, str], own: LocalStore = store, **content: Any) -> Path:
    transaction = own.begin(target)
    for name, text in files.items():
        with transaction.open(name) as file:
            file.write(text.encode())
    return transaction.commit(content)


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }


def whole(path: Path) -> dict[str, str]:
    """The content of a checkpoint, verified."""
    store.settle(path)
    manifest = store.manifest(path)
    assert manifest is not None
    store.verify(path, manifest)
    return {record.path: (path / record.path).read_text() for record in manifest.files}


def run_and_die(work: Callable[[], Any], watched: Path, after: int) -> bool:
    """Runs ``work`` in a fork that is gone at the ``after``-th touch of the file system. Whether it got that far."""
    child = os.fork()
    if child == 0:
        left = after

        def count(event: str, args: tuple[Any, ...]) -> None:
            nonlocal left
            if event in ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.scandir", "os.listdir"):
                first = args[0] if args and args[0] is not None else ""
                if isinstance(first, int) or str(first).startswith(str(watched)) or event == "os.remove":
                    left -= 1
                    if left <= 0:
                        os._exit(9)

        sys.addaudithook(count)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


def test_a_new_checkpoint_appears_at_once(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "checkpoint_0"
    transaction = store.begin(target)
    with transaction.open("a/b.txt") as file:
        file.write(b"text")
    assert not target.exists()
    assert transaction.commit({"n": 1}) == target
    manifest = store.manifest(target)
    assert manifest is not None
    assert manifest.content == {"n": 1}
    assert manifest.files == (FileRecord(path="a/b.txt", size=4, digest=digest_of(target / "a/b.txt")[1]),)
    assert [path.name for path in target.parent.iterdir()] == ["checkpoint_0"]


def test_files_that_others_wrote_are_taken_over(tmp_path: Path) -> None:
    transaction = store.begin(tmp_path / "c")
    (transaction.folder / "engine").mkdir()
    (transaction.folder / "engine" / "part.bin").write_bytes(b"123")
    other = store.join(transaction.folder, transaction.id)
    assert [record.path for record in other.adopt(lambda name: name.startswith("engine/"))] == ["engine/part.bin"]
    with pytest.raises(CheckpointError, match="began"):
        other.commit({})
    transaction.commit({})
    assert whole(tmp_path / "c") == {"engine/part.bin": "123"}


def test_a_rank_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="share"):
        store.join(tmp_path / "nowhere", "id")


def test_abort_leaves_nothing(tmp_path: Path) -> None:
    transaction = store.begin(tmp_path / "c")
    with transaction.open("a") as file:
        file.write(b"1")
    transaction.abort()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_keeps_what_is_not_ours(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "log.txt").write_text("mine")
    write(target, {"a": "1", "b/c": "1", "gone": "1"})
    inode = (target / "log.txt").stat().st_ino
    write(target, {"a": "2", "b/c": "2"})
    assert contents(target) == {"a": "2", "b/c": "2", "log.txt": "mine"}
    assert whole(target) == {"a": "2", "b/c": "2"}
    assert (target / "log.txt").stat().st_ino == inode


def test_a_file_may_become_a_folder_and_back(tmp_path: Path) -> None:
    target = tmp_path / "out"
    write(target, {"optimizer": "1"})
    write(target, {"optimizer/part": "2"})
    assert whole(target) == {"optimizer/part": "2"}
    write(target, {"optimizer": "3"})
    assert whole(target) == {"optimizer": "3"}


def test_where_nothing_can_be_written_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file/c"):
        store.begin(tmp_path / "file" / "c")


@pytest.mark.parametrize("existing", [False, True], ids=["new folder", "over the old one"])
def test_a_death_at_any_touch_of_the_disk_leaves_one_whole_checkpoint(tmp_path: Path, existing: bool) -> None:
    old, new = {"a": "old", "b/c": "old", "only old": "x"}, {"a": "new!", "b/c": "new!", "d": "new!"}
    root, deaths, seen = tmp_path / "root", 0, set()
    for after in range(1, 400):
        target = root / f"{after}" / "checkpoint_1"
        previous = target if existing else target.with_name("checkpoint_0")
        write(previous, old)
        if not run_and_die(lambda target=target: write(target, new), target.parent, after):  # type: ignore[misc]
            assert whole(target) == new
            break
        deaths += 1
        store.settle(target)
        newest = store.entries(target.parent)[-1].path
        seen.add("new" if whole(newest) == new else "old")
        assert whole(newest) in (old, new)
        # The next save finds nothing in its way, and leaves nothing of the dead one.
        write(target, {"a": "next"})
        assert whole(target) == {"a": "next"}
        names = {path.name for path in target.parent.iterdir()} | {path.name for path in target.iterdir()}
        assert not [name for name in names if ".tmp-" in name]
    else:
        pytest.fail("the writer never came to its end")
    assert deaths > 10
    assert seen == {"old", "new"} if existing else "old" in seen


def test_a_death_while_pruning_leaves_the_newest(tmp_path: Path) -> None:
    for after in range(1, 100):
        root = tmp_path / str(after)
        for number in range(3):
            write(root / layout.checkpoint_name(number), {"a": f"{number}", "b": "x"})
        died = run_and_die(lambda root=root: store.prune(root, 1), root, after)  # type: ignore[misc]
        assert whole(store.entries(root)[-1].path)["a"] == "2"
        for entry in store.entries(root):
            assert whole(entry.path)["a"] == str(entry.number)
        store.prune(root, 1)
        assert [path.name for path in root.iterdir()] == ["checkpoint_2"]
        if not died:
            return
    pytest.fail("pruning never came to its end")


def test_prune_keeps_the_newest_by_number_and_at_least_one(tmp_path: Path) -> None:
    for number in (2, 10, 9):
        write(tmp_path / layout.checkpoint_name(number), {"a": "1"})
    (tmp_path / "notes").mkdir()
    assert [path.name for path in store.prune(tmp_path, 2)] == ["checkpoint_2"]
    assert store.prune(tmp_path, 0) == [tmp_path / "checkpoint_9"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint_10", "notes"]


def test_entries_are_checkpoints_only(tmp_path: Path) -> None:
    (tmp_path / "checkpoint_7").mkdir()
    write(tmp_path / "checkpoint_3", {"a": "1"})
    write(tmp_path / "checkpoint_x", {"a": "1"})
    (tmp_path / "checkpoint_5").mkdir()
    (tmp_path / "checkpoint_5" / "model.safetensors").write_text("")
    assert [entry.number for entry in store.entries(tmp_path)] == [3, 5]
    assert store.entries(tmp_path / "nowhere") == []


def test_a_checkpoint_that_somebody_is_writing_is_left_alone(tmp_path: Path) -> None:
    first = store.begin(tmp_path / "c")
    with first.open("a") as file:
        file.write(b"first")
    write(tmp_path / "c", {"a": "second"})
    assert first.folder.exists()
    first.commit({})
    assert whole(tmp_path / "c") == {"a": "first"}


def test_a_lock_goes_with_its_process(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    lock = claim(folder)
    assert lock.held
    with FolderLock(folder) as second:
        assert not second.held
    lock.release()
    with FolderLock(folder) as third:
        assert third.held


def test_a_child_that_was_forked_meanwhile_does_not_keep_the_lock(tmp_path: Path) -> None:
    lock = claim(tmp_path / "f")
    wait, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(wait, 1)
        os._exit(0)
    lock.release()
    with FolderLock(tmp_path / "f") as second:
        assert second.held
    os.close(go)
    os.close(wait)
    assert os.waitpid(child, 0)[1] == 0


def test_one_flipped_byte_in_any_file_is_found_and_named(tmp_path: Path) -> None:
    target = write(tmp_path / "c", {"one": "abc", "sub/two": "x" * 3000}, note="y")
    for name in ("one", "sub/two", MANIFEST):
        path = target / name
        data = path.read_bytes()
        for place in {0, 1, len(data) // 2, len(data) - 1}:
            for bit in (0, 5, 7):
                path.write_bytes(data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :])
                with pytest.raises(CheckpointDamagedError, match=name):
                    store.verify(target, Manifest.read(target) or pytest.fail("no manifest"))
        path.write_bytes(data)
    whole(target)


def test_missing_and_shortened_files_are_named_together(tmp_path: Path) -> None:
    target = write(tmp_path / "c", {"a": "abc", "b": "abc", "c": "abc"})
    (target / "a").unlink()
    (target / "b").write_text("ab")
    with pytest.raises(CheckpointDamagedError) as raised:
        store.verify(target, Manifest.read(target) or pytest.fail("no manifest"), describe=lambda f: f"<{f}>")
    assert "<a> cannot be read" in str(raised.value)
    assert "<b> has 2 bytes, 3 were written" in str(raised.value)
    assert "<c>" not in str(raised.value)


def test_a_manifest_of_a_later_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelerate.checkpoint.manifest.FORMAT", 2)
    target = write(tmp_path / "c", {"a": "1"})
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="format 2"):
        store.manifest(target)


def test_durable_writes_sync_files_folders_and_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}").rpartition("/")[2].split(".tmp-")[0])
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    write(tmp_path / "c", {"a": "1", "sub/b": "2"}, LocalStore(durable=True))
    # Files, then folders, then the manifest and the folder it is in, then the folder that knows the name.
    assert synced == ["a", "b", "sub", f"{MANIFEST}.draft", ".c", tmp_path.name]
    synced.clear()
    write(tmp_path / "d", {"a": "1"}, LocalStore(durable=False))
    assert synced == []


def test_a_full_disk_is_an_error_that_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "c", {"a": "old"})
    transaction = store.begin(tmp_path / "c")
    with transaction.open("a") as file:
        file.write(b"new")

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("accelerate.checkpoint.local_store.os.replace", full)
    with pytest.raises(CheckpointError, match="No space left"):
        transaction.commit({})
    monkeypatch.undo()
    assert whole(tmp_path / "c") == {"a": "old"}
    assert contents(tmp_path / "c") == {"a": "old"}
