"""torchdata's StatefulDataLoader underneath."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from accelerate import optional
from accelerate.data.shard import DataLoaderShard
from accelerate.data.stateful import is_torchdata, quiet, stateful_class, with_state
from accelerate.errors import CheckpointMismatchError, MissingPackageError
from loaders import Numbers, Stream, flat, ids, prepare


class Counter(IterableDataset):
    """A stream that divides itself among workers, and tells where it is."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        while first + self.at * step < self.length:
            self.at += 1
            yield first + (self.at - 1) * step
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [Counter, Stream, Numbers])
def test_a_stopped_run_goes_on(dataset: Any, workers: int) -> None:
    if dataset is Stream and workers:
        dataset, workers = Stream, 1  # more would each read all of it

    def make() -> Any:
        plain = DataLoader(dataset(26), batch_size=3, num_workers=workers)
        loader = prepare(plain, use_stateful_dataloader=True)
        assert is_torchdata(loader) and loader.use_stateful_dataloader and isinstance(loader, DataLoaderShard)
        return loader

    loader = make()
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    state = loader.state_dict()
    wanted = [ids(iterator), ids(loader)]
    again = make()
    again.load_state_dict(state)
    assert [ids(again), ids(again)] == wanted
    assert again.end_of_dataloader


def test_a_dataset_that_divides_itself_keeps_a_place_a_rank() -> None:
    def make(rank: int) -> Any:
        plain = DataLoader(Counter(40), batch_size=2, num_workers=1)
        return prepare(plain, 2, rank, use_stateful_dataloader=True, dispatch_batches=False)

    states, rests = [], []
    for rank in range(2):
        loader = make(rank)
        iterator = iter(loader)
        next(iterator)
        states.append(loader.state_dict())
        rests.append(flat(iterator))
    record = {**{key: value for key, value in states[0].items() if key != "data"}, "by_rank": states}
    assert all(state["per_rank"] for state in states)
    for rank in range(2):
        again = make(rank)
        again.load_state_dict(record)
        assert flat(again) == rests[rank]
    alone = prepare(DataLoader(Counter(40), batch_size=2, num_workers=1), use_stateful_dataloader=True)
    with pytest.raises(CheckpointMismatchError, match="on 2 ranks"):
        alone.load_state_dict(record)


def test_a_loader_of_a_users_own_class_stays_one() -> None:
    class Mine(DataLoader):
        tag = "mine"

    loader = prepare(Mine(Numbers(6), batch_size=2), use_stateful_dataloader=True)
    assert isinstance(loader, Mine) and is_torchdata(loader) and loader.tag == "mine"
    assert ids(loader) == [[0, 1], [2, 3], [4, 5]]


def test_a_stateful_loader_of_the_users() -> None:
    with quiet():
        plain = stateful_class()(Numbers(8), batch_size=2, shuffle=True)
    assert with_state(plain) is plain
    loader = prepare(plain, data_seed=3)
    seen = flat(loader)
    assert sorted(seen) == list(range(8))
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = flat(iterator)
    with quiet():
        again = prepare(stateful_class()(Numbers(8), batch_size=2, shuffle=True))
    again.load_state_dict(state)
    assert flat(again) == rest


def test_a_loader_built_by_hand() -> None:
    loader = DataLoaderShard(Numbers(6), use_stateful_dataloader=True, batch_size=2)
    assert is_torchdata(loader) and ids(loader) == [[0, 1], [2, 3], [4, 5]]
    assert not DataLoaderShard(Numbers(6), batch_size=2).use_stateful_dataloader


def test_without_torchdata_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchdata", None)
    monkeypatch.setitem(sys.modules, "torchdata.stateful_dataloader", None)
    optional.forget()
    try:
        with pytest.raises(MissingPackageError, match=r"use_stateful_dataloader=True.*torchdata>=0\.8"):
            prepare(DataLoader(Numbers(6)), use_stateful_dataloader=True)
        assert not is_torchdata(DataLoader(Numbers(6)))
    finally:
        monkeypatch.undo()
        optional.forget()
