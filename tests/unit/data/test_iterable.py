"""Streams shared out among ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from accelerate.data.dispatch import DataLoaderDispatcher
from accelerate.data.iterable import IterableDatasetShard, StatefulIterableDatasetShard
from accelerate.errors import PrepareError
from loaders import Stream, flat, ids, prepare

CASES = list(itertools.product((0, 1, 2, 5, 7, 8, 9, 16, 17), (1, 2, 3, 4), (1, 2, 3, 4), (False, True)))


def test_ranks_together_see_the_stream() -> None:
    for length, size, ranks, drop_last in CASES:
        group = size * ranks
        parts = [IterableDatasetShard(Stream(length), size, drop_last, ranks, rank) for rank in range(ranks)]
        got = [list(part) for part in parts]
        case = (length, size, ranks, drop_last)
        assert len({len(items) for items in got}) == 1, case
        groups = length // group if drop_last else -(-length // group)
        assert [len(items) for items in got] == [groups * size] * ranks, case
        steps = range(0, len(got[0]), size)
        together = [item for start in steps for items in got for item in items[start : start + size]]
        whole = list(range(length // group * group if drop_last else length))
        assert together[: len(whole)] == whole, case
        assert together[len(whole) :] == [i % length for i in range(len(together) - len(whole))], case
        assert all(part.at_source is False for part in parts) or not length


def test_without_filling_the_rest_goes_where_it_falls() -> None:
    parts = [IterableDatasetShard(Stream(7), 2, False, 2, rank) for rank in range(2)]
    for part in parts:
        part.even_batches = False
    assert [list(part) for part in parts] == [[0, 1, 4, 5], [2, 3, 6]]


def test_split_shares_out_each_batch() -> None:
    parts = [IterableDatasetShard(Stream(6), 4, False, 2, rank, split_batches=True) for rank in range(2)]
    assert [list(part) for part in parts] == [[0, 1, 4, 5], [2, 3, 0, 1]]
    with pytest.raises(PrepareError, match="a batch of 3 cannot be cut into 2 equal parts"):
        IterableDatasetShard(Stream(6), 3, num_processes=2, split_batches=True)


class Lengthy(Stream):
    """A stream that knows its length, and an epoch."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.epoch = 0

    def __len__(self) -> int:
        return self.length

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_the_length_of_a_part() -> None:
    assert len(IterableDatasetShard(Lengthy(10), 2, False, 2, 0)) == 6
    assert len(IterableDatasetShard(Lengthy(10), 2, True, 2, 0)) == 4
    assert len(IterableDatasetShard(Lengthy(10), 4, False, 2, 0, split_batches=True)) == 6
    with pytest.raises(TypeError):
        len(IterableDatasetShard(Stream(10), 2, False, 2, 0))
    loader = prepare(DataLoader(Lengthy(10), batch_size=2), 2, 0, dispatch_batches=False)
    assert len(loader) == 3 == len(ids(loader))


def test_the_epoch_reaches_the_dataset() -> None:
    data = Lengthy(4)
    loader = prepare(DataLoader(data, batch_size=2), 2, 0, dispatch_batches=False)
    told = []
    for _ in range(2):
        ids(loader)
        told.append(data.epoch)
    loader.set_epoch(7)
    told.append(data.epoch)
    ids(loader)
    assert [*told, data.epoch] == [0, 1, 7, 7]
    assert loader.dataset.length == 4


class Aware(IterableDataset):
    """Divides itself among workers, as torch's documentation shows."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.reads = 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, self.length, step):
            self.reads += 1
            yield number


class Asking(Aware):
    """Asks who it is, but not among how many."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        self.seed = None if info is None else (info.id, info.seed, info.dataset is self)
        for number in range(self.length):
            self.reads += 1
            yield number


def test_a_dataset_that_divides_itself_among_workers_is_divided_among_ranks() -> None:
    data = [Aware(100), Aware(100)]
    loaders = [prepare(DataLoader(data[r], batch_size=8), 2, r, dispatch_batches=False) for r in range(2)]
    assert [flat(loader) for loader in loaders] == [list(range(0, 100, 2)), list(range(1, 100, 2))]
    assert [part.reads for part in data] == [50, 50]
    assert get_worker_info() is None


def test_with_workers_it_is_divided_among_all_of_them() -> None:
    how: dict[str, Any] = {"batch_size": 4, "num_workers": 2}
    loaders = [prepare(DataLoader(Aware(40), **how), 2, r, dispatch_batches=False) for r in range(2)]
    seen = [flat(loader) for loader in loaders]
    assert sorted(seen[0] + seen[1]) == list(range(40))
    assert sorted(seen[0]) == sorted([*range(0, 40, 4), *range(1, 40, 4)])


def test_a_dataset_that_does_not_ask_for_the_number_is_shared_out_by_items() -> None:
    data = Asking(9)
    assert list(IterableDatasetShard(data, 2, False, 2, 1)) == [2, 3, 6, 7, 1, 2]
    assert data.seed is not None and data.seed[0] == 1 and data.seed[2]


class Pieces(IterableDataset):
    """Can cut itself."""

    def __init__(self, pieces: list[list[int]]) -> None:
        self.pieces = pieces
        self.reads = 0

    @property
    def num_shards(self) -> int:
        return len(self.pieces)

    def shard(self, num_shards: int, index: int) -> Pieces:
        return Pieces(self.pieces[index::num_shards])

    def __iter__(self) -> Iterator[int]:
        for piece in self.pieces:
            for number in piece:
                self.reads += 1
                yield number


def test_a_dataset_that_can_cut_itself_is_cut_at_its_source() -> None:
    data = Pieces([[0, 1], [2, 3], [4, 5], [6, 7]])
    loaders = [prepare(DataLoader(data, batch_size=2), 2, r, dispatch_batches=False) for r in range(2)]
    assert [flat(loader) for loader in loaders] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert [loader.dataset.reads for loader in loaders] == [4, 4] and data.reads == 0


def test_a_dataset_with_less_pieces_than_ranks_is_shared_out_by_items() -> None:
    loader = prepare(DataLoader(Pieces([[0, 1, 2, 3]]), batch_size=1), 2, 1, dispatch_batches=False)
    assert isinstance(loader.dataset, IterableDatasetShard) and flat(loader) == [1, 3]


def test_somebodys_own_method_called_shard_is_not_ours() -> None:
    class Other(Stream):
        def shard(self, where: str) -> None:
            raise AssertionError

    loader = prepare(DataLoader(Other(4), batch_size=1), 2, 1, dispatch_batches=False)
    assert flat(loader) == [1, 3]


def test_by_default_rank_0_reads_a_stream_for_all() -> None:
    assert isinstance(prepare(DataLoader(Stream(4), batch_size=1), 2, 1), DataLoaderDispatcher)
    assert not isinstance(prepare(DataLoader(Stream(4), batch_size=1), 1, 0), DataLoaderDispatcher)


def test_how_many_samples_of_a_streams_last_step_are_real() -> None:
    for rank in range(2):
        loader = prepare(DataLoader(Stream(11), batch_size=2), 2, rank, dispatch_batches=False)
        assert [loader.remainder for _ in loader][-1] == 3
        full = prepare(DataLoader(Stream(8), batch_size=2), 2, rank, dispatch_batches=False)
        assert [full.remainder for _ in full][-1] == 0


def test_the_state_of_a_dataset_is_taken_where_every_rank_begins_a_batch() -> None:
    class Counted(Stream):
        def state_dict(self) -> dict[str, int]:
            return {"read": len(self.read)}

        def load_state_dict(self, state: dict[str, int]) -> None:
            raise AssertionError

    part = StatefulIterableDatasetShard(Counted(20), 2, False, 2, 1)
    items = iter(part)
    told = [(next(items), part.state_dict()) for _ in range(4)]
    assert [item for item, _ in told] == [2, 3, 6, 7]
    assert [state["at"] for _, state in told] == [0, 0, 4, 4]
    assert [state["dataset"]["read"] for _, state in told] == [0, 0, 4, 4]


def test_batches_that_the_stream_makes_itself() -> None:
    class Batches(IterableDataset):
        def __iter__(self) -> Iterator[torch.Tensor]:
            return iter([torch.tensor([i, i + 1]) for i in range(0, 10, 2)])

    loaders = [prepare(DataLoader(Batches(), batch_size=None), 2, r, dispatch_batches=False) for r in range(2)]
    assert [ids(loader) for loader in loaders] == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]]
