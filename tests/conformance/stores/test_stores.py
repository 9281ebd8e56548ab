"""What every store of checkpoints promises; a new one joins ``STORES`` and passes this."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from accelerate import Accelerator
from accelerate.checkpoint.local_store import LocalStore
from accelerate.checkpoint.save import Saver
from accelerate.checkpoint.store import CheckpointStore
from accelerate.errors import CheckpointDamagedError, CheckpointError
from conformance.stores.fake_store import FakeStore

STORES: dict[str, Callable[[Path], CheckpointStore]] = {
    "durable": lambda path: LocalStore(),
    "quick": lambda path: LocalStore(durable=False),
    "fake": lambda path: FakeStore(path / "aside"),
}


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    return STORES[request.param](tmp_path)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints" / "checkpoint_0"


def written(store: CheckpointStore, target: Path, **files: bytes) -> Path:
    transaction = store.begin(target)
    for name, data in files.items():
        with transaction.open(name) as file:
            file.write(data)
    return transaction.commit({"step": 3})


def test_what_was_committed_is_there_whole(store: CheckpointStore, target: Path) -> None:
    assert written(store, target, a=b"abc", b=b"") == target
    manifest = store.manifest(target)
    assert manifest is not None and manifest.content == {"step": 3}
    assert {record.path: record.size for record in manifest.files} == {"a": 3, "b": 0}
    assert (target / "a").read_bytes() == b"abc"
    store.verify(target, manifest)


def test_nothing_is_there_before_the_commit(store: CheckpointStore, target: Path) -> None:
    transaction = store.begin(target)
    with transaction.open("sub/a") as file:
        file.write(b"abc")
    assert store.manifest(target) is None and store.entries(target.parent) == []
    transaction.commit({})
    assert [entry.path for entry in store.entries(target.parent)] == [target]
    assert (target / "sub" / "a").read_bytes() == b"abc"


def test_what_is_given_up_leaves_nothing(store: CheckpointStore, target: Path) -> None:
    transaction = store.begin(target)
    with transaction.open("a") as file:
        file.write(b"abc")
    transaction.abort()
    assert not transaction.folder.exists() and not target.exists()
    assert store.manifest(target) is None and store.entries(target.parent) == []


def test_giving_up_after_the_commit_does_nothing(store: CheckpointStore, target: Path) -> None:
    transaction = store.begin(target)
    with transaction.open("a") as file:
        file.write(b"abc")
    transaction.commit({})
    transaction.abort()
    assert (target / "a").read_bytes() == b"abc" and store.manifest(target) is not None


def test_files_of_others_are_taken_in(store: CheckpointStore, target: Path) -> None:
    transaction = store.begin(target)
    for name in ("theirs", "left"):
        (transaction.folder / name).write_bytes(name.encode())
    assert [record.path for record in transaction.adopt(lambda name: name == "theirs")] == ["theirs"]
    (transaction.folder / "left").unlink()
    transaction.commit({})
    manifest = store.manifest(target)
    assert manifest is not None and [record.path for record in manifest.files] == ["theirs"]


def test_another_rank_writes_a_part(store: CheckpointStore, target: Path) -> None:
    transaction = store.begin(target)
    other = store.join(transaction.folder, transaction.id)
    with other.open("part") as file:
        file.write(b"part")
    (other.folder / "engine").write_bytes(b"engine")
    records = other.adopt(lambda name: name == "engine")
    transaction.add(records)
    with pytest.raises(CheckpointError):
        other.commit({})
    other.abort()
    transaction.commit({})
    manifest = store.manifest(target)
    assert manifest is not None and {record.path for record in manifest.files} == {"part", "engine"}
    store.verify(target, manifest)


def test_a_folder_that_is_not_shared(store: CheckpointStore, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        store.join(tmp_path / "elsewhere", "id")


@pytest.mark.parametrize("damage", ["changed", "cut", "gone"])
def test_every_damaged_file_is_named(store: CheckpointStore, target: Path, damage: str) -> None:
    written(store, target, good=b"good", bad=b"bad!", worse=b"worse")
    for name in ("bad", "worse"):
        path = target / name
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-1] + (b"" if damage == "cut" else b"?"))
    manifest = store.manifest(target)
    assert manifest is not None
    with pytest.raises(CheckpointDamagedError) as caught:
        store.verify(target, manifest, describe=lambda name: f"<{name}>")
    assert "<bad>" in str(caught.value) and "<worse>" in str(caught.value) and "<good>" not in str(caught.value)


def test_one_checkpoint_takes_the_place_of_another(store: CheckpointStore, target: Path) -> None:
    written(store, target, a=b"old")
    (target / "notes.txt").write_text("the user's own")
    written(store, target, a=b"new")
    manifest = store.manifest(target)
    assert manifest is not None and (target / "a").read_bytes() == b"new"
    store.verify(target, manifest)
    assert (target / "notes.txt").read_text() == "the user's own"


def test_the_oldest_go_first(store: CheckpointStore, target: Path) -> None:
    root = target.parent
    for number in (9, 10, 2):
        written(store, root / f"checkpoint_{number}", a=b"a")
    assert [entry.number for entry in store.entries(root)] == [2, 9, 10]
    assert store.prune(root, 2) == [root / "checkpoint_2"] and not (root / "checkpoint_2").exists()
    assert store.prune(root, 0) == [root / "checkpoint_9"]
    assert [entry.number for entry in store.entries(root)] == [10]
    assert store.entries(root / "nothing") == []


def test_settling_leaves_what_is_complete(store: CheckpointStore, target: Path) -> None:
    written(store, target, a=b"abc")
    store.settle(target)
    store.settle(target.parent / "checkpoint_1")
    manifest = store.manifest(target)
    assert manifest is not None
    store.verify(target, manifest)


@pytest.mark.usefixtures("fresh_state")
def test_an_accelerator_keeps_its_checkpoints_in_it(store: CheckpointStore, target: Path) -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(2, 1))
    accelerator._open_saver = Saver(store)
    accelerator.save_state(str(target))
    kept = model.weight.detach().clone()
    model.weight.data.zero_()
    accelerator.load_state(str(target))
    assert torch.equal(model.weight, kept)
    damaged = next(path for path in target.iterdir() if path.name.startswith("model"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x7f")
    model.weight.data.zero_()
    with pytest.raises(CheckpointDamagedError):
        accelerator.load_state(str(target))
    assert not model.weight.any()
