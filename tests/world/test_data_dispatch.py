"""Rank 0 reads for all, on ranks that are threads."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from accelerate.data.dispatch import DataLoaderDispatcher
from accelerate.data.prepare import Part, prepare_loader
from accelerate.data.skip import skip_first_batches
from accelerate.state import GradientState
from accelerate.test_utils.world import RanksFailedError, run_world
from loaders import CPU, Numbers, Stream, flat, ids, prepare

LENGTHS = (0, 1, 8, 13)


def dispatched(make: Any, rank: int, n: int, **how: Any) -> Any:
    loader = prepare(make(), n, rank, dispatch_batches=True, **how)
    assert isinstance(loader, DataLoaderDispatcher)
    return loader


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("dataset", [Numbers, Stream])
@pytest.mark.parametrize("split", [False, True])
def test_ranks_get_what_they_would_read_themselves(ranks: int, dataset: Any, split: bool) -> None:
    cases = list(itertools.product(LENGTHS, (ranks, 2 * ranks) if split else (1, 2, 3), (False, True), (False, True)))

    def each(rank: int, n: int) -> list[Any]:
        found = []
        for length, size, drop_last, even in cases:
            make = lambda: DataLoader(dataset(length), batch_size=size, drop_last=drop_last)  # noqa: B023
            loader = dispatched(make, rank, n, split_batches=split, even_batches=even)
            found.append([(ids([batch])[0], loader.end_of_dataloader, loader.remainder) for batch in loader])
            if dataset is Numbers and (even or not split):
                assert len(loader) == len(found[-1]), (length, size, drop_last, even)
        return found

    got = run_world(each, ranks)
    for case, *seen in zip(cases, *got, strict=True):
        length, size, drop_last, even = case
        for rank, batches in enumerate(seen):
            own = prepare(
                DataLoader(Numbers(length), batch_size=size, drop_last=drop_last),
                ranks,
                rank,
                split_batches=split,
                even_batches=even,
            )
            if split and not even:
                continue
            wanted = [(batch.tolist(), own.end_of_dataloader, own.remainder) for batch in own]
            numbers = [(batch, end) for batch, end, _ in batches]
            assert numbers == [(batch, end) for batch, end, _ in wanted], (case, rank)
            if even and batches:
                assert batches[-1][2] == wanted[-1][2], (case, rank)
        if not even and not drop_last:
            together = {number for batches in seen for batch, _, _ in batches for number in batch}
            assert together == set(range(length)), case


def test_only_rank_0_reads() -> None:
    def each(rank: int, n: int) -> tuple[int, list[int]]:
        data = Stream(10)
        seen = flat(dispatched(lambda: DataLoader(data, batch_size=2), rank, n))
        return len(data.read), seen

    (read, first), (none, second) = run_world(each, 2)
    assert (read, none) == (10, 0)
    assert first == [0, 1, 4, 5, 8, 9] and second == [2, 3, 6, 7, 0, 1]


class Ragged(IterableDataset):
    """Items that differ in length."""

    def __iter__(self) -> Any:
        return iter([torch.arange(length) for length in (3, 1, 4, 1, 5, 9, 2)])


def test_items_that_differ_in_length_arrive() -> None:
    def each(rank: int, n: int) -> list[list[list[int]]]:
        return [batch.tolist() for batch in dispatched(lambda: DataLoader(Ragged(), batch_size=1), rank, n)]

    first, second = run_world(each, 2)
    assert [len(batch[0]) for batch in first] == [3, 4, 5, 2]
    assert [len(batch[0]) for batch in second] == [1, 1, 9, 3]


@dataclass
class Record:
    value: torch.Tensor
    note: str


def mixed(items: list[int]) -> dict[str, Any]:
    return {
        "x": torch.tensor(items),
        "text": [str(item) for item in items],
        "flag": True,
        "nothing": None,
        "record": Record(torch.tensor(items), "n"),
        "deep": {"list": [[item, None] for item in items], "pair": (torch.tensor(items), "s")},
    }


@pytest.mark.parametrize("split", [False, True])
def test_whatever_is_in_a_batch_arrives_as_it_is(split: bool) -> None:
    def each(rank: int, n: int) -> list[Any]:
        make = lambda: DataLoader(Numbers(8), batch_size=4, collate_fn=mixed)
        return list(dispatched(make, rank, n, split_batches=split))

    for rank, batches in enumerate(run_world(each, 2)):
        batch = batches[0]
        part = [0, 1] if rank == 0 else [2, 3]
        wanted = part if split else list(range(4 * rank, 4 * rank + 4))
        assert batch["x"].tolist() == wanted and batch["text"] == [str(item) for item in wanted]
        assert batch["flag"] is True and batch["nothing"] is None
        assert isinstance(batch["record"], Record) and batch["record"].note == "n"
        assert batch["deep"]["list"] == [[item, None] for item in wanted]
        assert batch["deep"]["pair"][0].tolist() == wanted and batch["deep"]["pair"][1] == "s"


def test_tensors_go_to_the_device() -> None:
    def each(rank: int, n: int) -> list[bool]:
        loader = dispatched(lambda: DataLoader(Numbers(4), batch_size=2), rank, n, device=torch.device("meta"))
        return [batch.is_meta for batch in loader]

    assert run_world(each, 2) == [[True], [True]]


@pytest.mark.parametrize("dataset", [Numbers, Stream])
def test_a_loader_that_makes_no_batches(dataset: Any) -> None:
    def each(rank: int, n: int) -> list[Any]:
        loader = dispatched(lambda: DataLoader(dataset(5), batch_size=None), rank, n)
        return [(entry, loader.end_of_dataloader) for entry in loader]

    first, second = run_world(each, 2)
    assert first == [(0, False), (2, False), (4, True)]
    assert second == [(1, False), (3, False), (0, True)]


def test_batches_of_no_fixed_size() -> None:
    def each(rank: int, n: int) -> list[Any]:
        batches = [[0], [1, 2, 3], [4, 5]]
        loader = dispatched(lambda: DataLoader(Numbers(6), batch_sampler=batches), rank, n)
        return [(batch.tolist(), loader.remainder) for batch in loader]

    assert run_world(each, 2) == [[([0], -1), ([4, 5], 2)], [([1, 2, 3], -1), ([0], 2)]]


def test_the_end_is_known_on_every_rank() -> None:
    def each(rank: int, n: int) -> list[Any]:
        loader = dispatched(lambda: DataLoader(Numbers(10), batch_size=2), rank, n)
        state = GradientState()
        seen: list[Any] = [(state.end_of_dataloader, state.remainder, loader.batches_left) for _ in loader]
        return [*seen, state.in_dataloader]

    assert run_world(each, 2) == [[(False, -1, 2), (False, -1, 1), (True, 2, 0), False]] * 2


@pytest.mark.parametrize("dataset", [Numbers, Stream])
def test_a_place_is_the_same_on_every_rank_and_on_any_number_of_them(dataset: Any) -> None:
    def make() -> DataLoader:
        return DataLoader(dataset(40), batch_size=3, shuffle=True if dataset is Numbers else None)

    def first(rank: int, n: int) -> tuple[dict[str, Any], list[list[int]], list[int]]:
        loader = dispatched(make, rank, n, data_seed=4)
        flat(loader)
        iterator = iter(loader)
        seen = flat(itertools.islice(iterator, 2))
        state = loader.gather_state()
        assert state["epoch"] == loader.iteration == 1
        return state, [ids(iterator), *[ids(loader)]], seen

    def second(rank: int, n: int) -> list[list[int]]:
        loader = dispatched(make, rank, n)
        loader.load_state_dict(state)
        return [ids(loader), *[ids(loader)]]

    (state, *_), (other, *_) = told = run_world(first, 2)
    assert state == other and (state["batches"], state["samples"]) == (4, 12)
    rests = run_world(second, 2), [rest for _, rest, _ in told]
    if dataset is Stream:  # what fills its last step has gone by
        rests = [[(epoch[0][:-1], epoch[1]) for epoch in rest] for rest in rests]
    assert rests[0] == rests[1]
    seen = [number for *_, numbers in told for number in numbers]

    def third(rank: int, n: int) -> list[int]:
        loader = dispatched(make, rank, n, even_batches=False)
        loader.load_state_dict(state)
        return flat(loader)

    assert sorted(seen + [number for numbers in run_world(third, 3) for number in numbers]) == list(range(40))
    alone = prepare(make())
    alone.load_state_dict(state)
    assert sorted(seen + flat(alone)) == list(range(40))


def test_the_state_of_a_stream_comes_from_the_rank_that_reads() -> None:
    class Counter(Stream):
        at = 0

        def __iter__(self) -> Any:
            while self.at < self.length:
                self.at += 1
                self.read.append(self.at - 1)
                yield self.at - 1
            self.at = 0

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    def first(rank: int, n: int) -> dict[str, Any]:
        loader = dispatched(lambda: DataLoader(Counter(20), batch_size=2), rank, n)
        iterator = iter(loader)
        next(iterator), next(iterator)
        return loader.gather_state()

    def second(rank: int, n: int) -> tuple[list[int], int]:
        loader = dispatched(lambda: DataLoader(Counter(20), batch_size=2), rank, n)
        loader.load_state_dict(state)
        seen = flat(loader)
        return seen, len(loader.dataset.read)

    state, other = run_world(first, 2)
    assert state == other and state["data"] == {"dataset": {"at": 8}}
    (seen, read), (more, none) = run_world(second, 2)
    assert sorted(seen + more) == list(range(8, 20)) and (read, none) == (12, 0)


def test_the_rest_of_an_epoch() -> None:
    def each(rank: int, n: int) -> Any:
        loader = dispatched(lambda: DataLoader(Numbers(14), batch_size=2, shuffle=True), rank, n, data_seed=1)
        epochs = [ids(loader) for _ in range(2)]
        loader.set_epoch(0)
        rest = skip_first_batches(loader, 2)
        assert len(rest) == len(loader) - 2
        return epochs, [ids(rest), ids(loader)]

    for epochs, got in run_world(each, 2):
        assert got == [epochs[0][2:], epochs[1]]


def test_ranks_that_share_a_model_get_the_same_part() -> None:
    def each(rank: int, n: int) -> list[list[int]]:
        loader = DataLoader(Numbers(8), batch_size=2)
        config = type("Config", (), {"dispatch_batches": True})
        part = Part(count=2, index=rank // 2)
        return ids(prepare_loader(loader, shard=part, device=CPU, config=config))

    assert run_world(each, 4) == [[[0, 1], [4, 5]]] * 2 + [[[2, 3], [6, 7]]] * 2


def test_a_users_own_way_of_cutting() -> None:
    def cut(batch: Any, part: slice, process_index: int, num_processes: int) -> Any:
        return {"part": batch[part], "rank": process_index, "of": num_processes}

    def each(rank: int, n: int) -> list[Any]:
        loader = DataLoader(Numbers(8), batch_size=2)
        config = type("Config", (), {"dispatch_batches": True})
        part = Part(count=n, index=rank)
        prepared = prepare_loader(loader, shard=part, device=CPU, config=config, slice_fn=cut)
        return [(batch["part"].tolist(), batch["rank"], batch["of"]) for batch in prepared]

    assert run_world(each, 2) == [[([0, 1], 0, 2), ([4, 5], 0, 2)], [([2, 3], 1, 2), ([6, 7], 1, 2)]]


class Mine(DataLoader):
    """Iterates in its own way."""

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield batch + 100


def test_a_loader_with_its_own_iteration() -> None:
    def each(rank: int, n: int) -> Any:
        loader = dispatched(lambda: Mine(Numbers(6), batch_size=1), rank, n)
        assert isinstance(loader, Mine)
        iterator = iter(loader)
        first = next(iterator).tolist()
        state = loader.state_dict()
        wanted = ids(iterator)
        loader.load_state_dict(state)
        assert ids(loader) == wanted
        return [first, *wanted]

    assert run_world(each, 2) == [[[100], [102], [104]], [[101], [103], [105]]]


def test_an_error_while_reading_is_raised_on_every_rank() -> None:
    class Broken(Numbers):
        def __getitem__(self, index: int) -> int:
            if index == 5:
                raise KeyError("item 5 is broken")
            return index

    def each(rank: int, n: int) -> str:
        try:
            ids(dispatched(lambda: DataLoader(Broken(8), batch_size=1), rank, n))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "no error"

    first, second = run_world(each, 2)
    assert first.startswith("KeyError") and "item 5 is broken" in first
    assert second.startswith("CollectiveError: Rank 0 reads this loader for all ranks, and could not go on: KeyError")


def test_a_batch_that_cannot_be_cut_is_an_error_on_every_rank() -> None:
    def each(rank: int, n: int) -> None:
        make = lambda: DataLoader(Numbers(8), batch_size=2, collate_fn=lambda items: {"n": len(items)})
        ids(dispatched(make, rank, n, split_batches=True))

    with pytest.raises(RanksFailedError, match="a dict with no tensor and no list in it cannot be cut"):
        run_world(each, 2)


def test_a_loader_built_by_hand() -> None:
    def each(rank: int, n: int) -> Any:
        loader = DataLoaderDispatcher(Numbers(12), batch_size=2, skip_batches=1, _drop_last=True, iteration=2)
        assert loader.iteration == 2 and loader.total_batch_size == 4 and loader.total_dataset_length == 12
        return ids(loader), len(loader)

    assert run_world(each, 2) == [([[4, 5], [8, 9]], 2), ([[6, 7], [10, 11]], 2)]
