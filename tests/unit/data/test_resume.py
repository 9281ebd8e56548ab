"""Going on where a loader was left: the rest of the epoch, in its order, and then the epochs that follow."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from accelerate.data.skip import skip_first_batches
from accelerate.errors import CheckpointMismatchError
from loaders import Numbers, Stream, flat, ids, prepare

Make = Callable[[], Any]


class GlobalShuffle(Sampler):
    """Draws from torch's global state, as many samplers do."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(22).tolist())

    def __len__(self) -> int:
        return 22


class Buckets:
    """Batches of several sizes, shuffled with the global state."""

    def __iter__(self) -> Iterator[list[int]]:
        bounds = [0, 3, 4, 8, 9, 12, 17, 22]
        batches = [list(range(a, b)) for a, b in itertools.pairwise(bounds)]
        return iter([batches[i] for i in torch.randperm(len(batches)).tolist()])

    def __len__(self) -> int:
        return 7


def weighted() -> DataLoader:
    return DataLoader(Numbers(22), batch_size=3, sampler=WeightedRandomSampler([1.0 + i for i in range(22)], 22))


LOADERS: dict[str, Make] = {
    "in order": lambda: DataLoader(Numbers(22), batch_size=3),
    "shuffled": lambda: DataLoader(Numbers(22), batch_size=3, shuffle=True),
    "shuffled by a generator": lambda: DataLoader(
        Numbers(22), batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(8)
    ),
    "last dropped": lambda: DataLoader(Numbers(22), batch_size=3, shuffle=True, drop_last=True),
    "weighted": weighted,
    "sampler of the user": lambda: DataLoader(Numbers(22), batch_size=3, sampler=GlobalShuffle()),
    "batch sampler of the user": lambda: DataLoader(Numbers(22), batch_sampler=Buckets()),
    "no batches": lambda: DataLoader(Numbers(22), batch_size=None, shuffle=True),
    "workers": lambda: DataLoader(Numbers(22), batch_size=3, shuffle=True, num_workers=2),
    "stream": lambda: DataLoader(Stream(22), batch_size=3),
    "stream with a worker": lambda: DataLoader(Stream(22), batch_size=3, num_workers=1),
}


def listed(batch: Any) -> list[int]:
    return [batch] if isinstance(batch, int) else batch.tolist()


def epochs(loader: Any, count: int) -> list[list[list[int]]]:
    return [[listed(batch) for batch in loader] for _ in range(count)]


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(state))


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("seedable", [True, False])
def test_a_run_that_was_stopped_sees_what_it_would_have_seen(name: str, seedable: bool) -> None:
    make = LOADERS[name]
    steps = (2,) if "worker" in name else range(8)
    for epoch, step in itertools.product((1,) if "worker" in name else (0, 2), steps):
        torch.manual_seed(1)
        loader = prepare(make(), use_seedable_sampler=seedable)
        for _ in range(epoch):
            epochs(loader, 1)
        if step == 0:
            state = loader.state_dict()
            rest = []
        else:
            iterator = iter(loader)
            for _ in range(min(step, len(loader) if not name.startswith("stream") else 8)):
                next(iterator)
            state = loader.state_dict()
            rest = [listed(batch) for batch in iterator]
        rng = torch.get_rng_state()
        wanted = ([rest] if step else []) + epochs(loader, 2)
        # Another process, in another random state: what is drawn later is torch's state, which is restored apart.
        torch.manual_seed(2)
        again = prepare(make(), use_seedable_sampler=seedable)
        again.load_state_dict(through_json(state))
        assert again.state_dict() == state
        got = epochs(again, 1) if step else []
        torch.set_rng_state(rng)
        got += epochs(again, 2)
        assert got == wanted, (name, epoch, step)


def test_the_random_state_is_not_moved_by_going_on() -> None:
    for make in (LOADERS["shuffled"], LOADERS["weighted"], LOADERS["sampler of the user"]):
        torch.manual_seed(1)
        loader = prepare(make())
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        state, at_save = loader.state_dict(), torch.get_rng_state()
        for _ in iterator:
            pass
        at_end = torch.get_rng_state()
        again = prepare(make())
        again.load_state_dict(state)
        torch.set_rng_state(at_save)
        epochs(again, 1)
        assert torch.equal(torch.get_rng_state(), at_end)


class Noisy(Numbers):
    """Adds noise from torch's global state to what is read."""

    def __getitem__(self, index: int) -> Any:
        return index + torch.rand(())


def test_noise_from_the_random_state_comes_again() -> None:
    torch.manual_seed(1)
    loader = prepare(DataLoader(Noisy(12), batch_size=2, shuffle=True))
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state, rng = loader.state_dict(), torch.get_rng_state()
    wanted = [batch.tolist() for batch in iterator] + [batch.tolist() for batch in loader]
    again = prepare(DataLoader(Noisy(12), batch_size=2, shuffle=True))
    again.load_state_dict(state)
    torch.set_rng_state(rng)
    assert [batch.tolist() for batch in again] + [batch.tolist() for batch in again] == wanted


def test_a_state_taken_with_the_last_batch_in_hand() -> None:
    loader = prepare(DataLoader(Numbers(10), batch_size=4, shuffle=True))
    states = [loader.state_dict() for _ in loader]
    following = epochs(loader, 1)
    again = prepare(DataLoader(Numbers(10), batch_size=4, shuffle=True))
    again.load_state_dict(states[-1])
    assert epochs(again, 2) == [[], *following]


def test_a_position_in_plain_values() -> None:
    loader = prepare(DataLoader(Numbers(22), batch_size=3, shuffle=True), 2, 0, data_seed=5)
    epochs(loader, 1)
    iterator = iter(loader)
    next(iterator), next(iterator)
    wanted = {"version": 1, "epoch": 1, "batches": 4, "samples": 12, "length": 22, "seed": 5}
    assert loader.state_dict() == wanted


COUNTS = [(1, 2), (2, 1), (2, 4), (4, 2), (4, 3), (3, 1)]


@pytest.mark.parametrize(("before", "after"), COUNTS)
@pytest.mark.parametrize("split", [False, True])
def test_another_number_of_ranks_sees_the_rest_exactly_once(before: int, after: int, split: bool) -> None:
    size, length = (12, 130) if split else (3, 100)

    def make() -> DataLoader:
        return DataLoader(Numbers(length), batch_size=size, shuffle=True)

    whole = flat(prepare(make(), data_seed=9))
    for step in (0, 1, 3, 5):
        first = [prepare(make(), before, rank, split_batches=split, data_seed=9) for rank in range(before)]
        seen: list[int] = []
        for iterator in [iter(loader) for loader in first]:
            seen += flat(itertools.islice(iterator, step))
            first.append(iterator)
        state = first[0].state_dict()
        assert all(loader.state_dict() == state for loader in first[:before])
        second = [prepare(make(), after, rank, split_batches=split, even_batches=False) for rank in range(after)]
        for loader in second:
            loader.load_state_dict(state)
        rest = [number for loader in second for number in flat(loader)]
        assert sorted(seen + rest) == sorted(whole), (step, state)
        assert sorted(rest) == sorted(whole[len(seen) :])


@pytest.mark.parametrize("after", [1, 2, 3])
def test_another_batch_size_sees_the_rest_exactly_once(after: int) -> None:
    first = [prepare(DataLoader(Numbers(50), batch_size=4, shuffle=True), 2, rank, data_seed=2) for rank in range(2)]
    held = [iter(loader) for loader in first]
    seen = [number for iterator in held for number in flat(itertools.islice(iterator, 3))]
    how: dict[str, Any] = {"batch_size": 7, "shuffle": True}
    second = [prepare(DataLoader(Numbers(50), **how), after, rank, even_batches=False) for rank in range(after)]
    for loader in second:
        loader.load_state_dict(first[1].state_dict())
    rest = [number for loader in second for number in flat(loader)]
    assert sorted(seen + rest) == list(range(50))


def test_a_short_last_step_after_a_resume_counts_its_real_samples() -> None:
    first = prepare(DataLoader(Numbers(20), batch_size=2), 2, 0)
    held = iter(first)
    next(held)
    second = [prepare(DataLoader(Numbers(20), batch_size=3), 3, rank) for rank in range(3)]
    for loader in second:
        loader.load_state_dict(first.state_dict())
    assert [[loader.remainder for _ in loader][-1] for loader in second] == [7, 7, 7]
    assert [loader.iteration for loader in second] == [1, 1, 1]


def test_epochs_go_on_by_themselves_and_can_be_named() -> None:
    loader = prepare(DataLoader(Numbers(12), batch_size=4, shuffle=True), data_seed=1)
    order = epochs(loader, 4)
    assert len({str(epoch) for epoch in order}) == 4 and loader.iteration == 4
    loader.set_epoch(1)
    assert epochs(loader, 2) == order[1:3]
    for number in range(4):
        loader.set_epoch(number)
        assert epochs(loader, 1) == [order[number]]


def test_an_epoch_that_was_left_early_is_followed_by_the_next() -> None:
    loader = prepare(DataLoader(Numbers(12), batch_size=4, shuffle=True), data_seed=1)
    order = epochs(loader, 3)
    loader.set_epoch(0)
    for _ in range(3):
        for batch in loader:
            first = batch.tolist()
            break
        assert first == order[loader.iteration][0]
    assert loader.iteration == 2
    assert epochs(loader, 1) != [order[2]]


def test_a_place_that_was_left_can_be_saved_after_the_loop() -> None:
    loader = prepare(DataLoader(Numbers(12), batch_size=4, shuffle=True), data_seed=1)
    whole = epochs(loader, 1)[0]
    loader.set_epoch(0)
    for _ in loader:
        break
    state = loader.state_dict()
    assert (state["epoch"], state["samples"]) == (0, 4)
    loader.load_state_dict(state)
    assert epochs(loader, 1) == [whole[1:]]


def test_naming_the_epoch_that_is_resumed_keeps_the_place() -> None:
    loader = prepare(DataLoader(Numbers(12), batch_size=4, shuffle=True), data_seed=1)
    order = epochs(loader, 3)
    state = {"version": 1, "epoch": 1, "batches": 1, "samples": 4, "length": 12, "seed": 1}
    loader.load_state_dict(state)
    loader.set_epoch(1)
    assert epochs(loader, 2) == [order[1][1:], order[2]]
    loader.load_state_dict(state)
    loader.set_epoch(2)
    assert epochs(loader, 1) == [order[2]]
    loader.load_state_dict(state)
    loader.get_sampler().set_epoch(2)
    assert epochs(loader, 1) == [order[2]]


def test_naming_an_epoch_in_the_middle_of_another_is_for_the_next() -> None:
    loader = prepare(DataLoader(Numbers(12), batch_size=4, shuffle=True), data_seed=1)
    order = epochs(loader, 6)
    loader.set_epoch(0)
    for number, _ in enumerate(loader):
        loader.set_epoch(4 if number == 0 else 5)
    assert epochs(loader, 1) == [order[5]]
    loader.set_epoch(0)
    for _ in loader:
        loader.set_epoch(0)
    assert epochs(loader, 1) == [order[1]]


def test_loading_in_the_middle_of_an_iteration_is_for_the_next() -> None:
    loader = prepare(DataLoader(Numbers(12), batch_size=4, shuffle=True), data_seed=1)
    order = epochs(loader, 3)
    for number, _ in enumerate(loader):
        if number == 0:
            loader.load_state_dict({"version": 1, "epoch": 1, "batches": 2, "samples": 8, "length": 12, "seed": 1})
    assert epochs(loader, 2) == [order[1][2:], order[2]]


def test_workers_that_stay_go_on_from_where_they_are_told() -> None:
    loader = prepare(
        DataLoader(Numbers(12), batch_size=2, shuffle=True, num_workers=1, persistent_workers=True), data_seed=1
    )
    order = epochs(loader, 2)
    workers = loader._iterator
    loader.load_state_dict({"version": 1, "epoch": 0, "batches": 2, "samples": 4, "length": 12, "seed": 1})
    assert epochs(loader, 2) == [order[0][2:], order[1]] and loader._iterator is workers
    workers._shutdown_workers()


class Dice(Numbers):
    """Adds a number drawn in the worker."""

    def __getitem__(self, index: int) -> int:
        return int(torch.randint(1000, ())) + 1000 * index


def test_workers_draw_what_they_would_have_drawn_from_the_epoch_that_follows() -> None:
    def make() -> Any:
        torch.manual_seed(5)
        return prepare(DataLoader(Dice(8), batch_size=2, num_workers=1, shuffle=True), data_seed=1)

    loader = make()
    iterator = iter(loader)
    next(iterator)
    state, rng = loader.state_dict(), torch.get_rng_state()
    list(iterator)
    wanted = epochs(loader, 1)
    again = make()
    again.load_state_dict(state)
    torch.set_rng_state(rng)
    epochs(again, 1)
    assert epochs(again, 1) == wanted


class Mixture(Sampler):
    """Takes turns among samplers that it keeps under names of its own, each with a generator."""

    def __init__(self) -> None:
        self.first = RandomSampler(range(8), generator=torch.Generator().manual_seed(1))
        self.others = [SubsetRandomSampler(range(8, 14)), WeightedRandomSampler([1.0] * 4, 4)]

    def __iter__(self) -> Iterator[int]:
        orders = [list(self.first), *[[number % 14 for number in other] for other in self.others]]
        return itertools.chain(*orders)

    def __len__(self) -> int:
        return 18


@pytest.mark.parametrize("seedable", [True, False])
def test_samplers_inside_a_sampler_of_the_users_come_again(seedable: bool) -> None:
    def make(**how: Any) -> Any:
        return prepare(DataLoader(Numbers(14), batch_size=3, sampler=Mixture()), use_seedable_sampler=seedable, **how)

    torch.manual_seed(1)
    loader = make(data_seed=2)
    orders = epochs(loader, 2)
    assert orders[0] != orders[1]
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = loader.state_dict()
    wanted = ids(iterator)
    torch.manual_seed(3)
    again = make()
    again.load_state_dict(through_json(state))
    assert epochs(again, 1) == [wanted]


def test_an_endless_sampler() -> None:
    class Endless(Sampler):
        def __iter__(self) -> Iterator[int]:
            return itertools.cycle(range(10))

    def make(rank: int) -> Any:
        return prepare(DataLoader(Numbers(10), batch_size=3, sampler=Endless()), 2, rank)

    for rank in range(2):
        loader = make(rank)
        iterator = iter(loader)
        first = [next(iterator).tolist() for _ in range(4)]
        assert first[0] == [3 * rank, 3 * rank + 1, 3 * rank + 2] and loader.batches_left is None
        again = make(rank)
        again.load_state_dict(loader.state_dict())
        assert next(iter(again)).tolist() == next(iterator).tolist()


def test_two_loaders_at_different_places() -> None:
    def pair() -> tuple[Any, Any]:
        return (
            prepare(DataLoader(Numbers(12), batch_size=2, shuffle=True), data_seed=1),
            prepare(DataLoader(Numbers(20), batch_size=3, shuffle=True), data_seed=2),
        )

    first, second = pair()
    epochs(second, 2)
    a, b = iter(first), iter(second)
    next(a), next(b), next(b)
    states = first.state_dict(), second.state_dict()
    wanted = [ids(a), ids(b), *epochs(first, 1), *epochs(second, 1)]
    first, second = pair()
    first.load_state_dict(states[0])
    second.load_state_dict(states[1])
    assert [*epochs(first, 1), *epochs(second, 1), *epochs(first, 1), *epochs(second, 1)] == wanted


def test_other_data_than_the_state_was_taken_of_is_refused() -> None:
    loader = prepare(DataLoader(Numbers(12), batch_size=2))
    with pytest.raises(CheckpointMismatchError, match="over 13 samples, and this one has 12"):
        loader.load_state_dict({"version": 1, "epoch": 0, "batches": 1, "samples": 2, "length": 13})
    with pytest.raises(CheckpointMismatchError, match="has version 7, and this release reads version 1"):
        loader.load_state_dict({"version": 7})


def test_no_item_is_read_to_get_to_a_place() -> None:
    data = Numbers(90_000)
    loader = prepare(DataLoader(data, batch_size=2, shuffle=True))
    place = {"batches": 44_990, "samples": 89_980, "length": 90_000}
    loader.load_state_dict({"version": 1, "epoch": 0, "seed": 3, **place})
    assert len(flat(loader)) == 20 == len(data.read)


class Counter(IterableDataset):
    """A stream that tells where it is."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.at = 0
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.length:
            self.at += 1
            self.read += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize(("ranks", "drop_last"), [(1, False), (2, False), (2, True)])
def test_a_stream_with_a_state_of_its_own_is_not_read_again(ranks: int, drop_last: bool) -> None:
    for rank in range(ranks):

        def make() -> Any:
            plain = DataLoader(Counter(22), batch_size=3, drop_last=drop_last)
            return prepare(plain, ranks, rank, dispatch_batches=False)  # noqa: B023  # called before rank changes

        for step in (1, 2, 3):
            loader = make()
            iterator = iter(loader)
            for _ in range(step):
                next(iterator)
            state = through_json(loader.state_dict())
            wanted = [ids(iterator), *epochs(loader, 1)]
            again = make()
            again.load_state_dict(state)
            got = epochs(again, 2)
            assert [batch for batch in got[0] if max(batch) < 22][:-1] == wanted[0][:-1]
            assert got[1] == wanted[1]
            assert again.dataset.read <= 22 - 3 * (step - 1) * ranks + 22


def test_a_stream_resumes_on_another_number_of_ranks() -> None:
    for make in (lambda: DataLoader(Stream(40), batch_size=3), lambda: DataLoader(Counter(40), batch_size=3)):
        first = [prepare(make(), 2, rank, dispatch_batches=False) for rank in range(2)]
        held = [iter(loader) for loader in first]
        seen = [number for iterator in held for number in flat(itertools.islice(iterator, 2))]
        assert sorted(seen) == list(range(12))
        for after in (1, 3):
            second = [prepare(make(), after, r, dispatch_batches=False, even_batches=False) for r in range(after)]
            for loader in second:
                loader.load_state_dict(first[1].state_dict())
            assert sorted(number for loader in second for number in flat(loader)) == list(range(12, 40))


class Stateful(Sampler):
    """A sampler that keeps its own place."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.length:
            self.at += 1
            yield self.length - self.at
        self.at = 0

    def __len__(self) -> int:
        return self.length

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class StatefulBatches(Stateful):
    """A batch sampler that keeps its own place."""

    def __iter__(self) -> Iterator[list[int]]:
        while self.at < self.length:
            self.at += 2
            yield [self.at - 2, self.at - 1]
        self.at = 0

    def __len__(self) -> int:
        return self.length // 2


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "make",
    [
        lambda workers: DataLoader(Numbers(20), batch_size=2, sampler=Stateful(20), num_workers=workers),
        lambda workers: DataLoader(Numbers(20), batch_sampler=StatefulBatches(20), num_workers=workers),
    ],
)
def test_a_sampler_with_a_state_of_its_own_is_put_where_the_user_was(make: Any, workers: int, ranks: int) -> None:
    loader = prepare(make(workers), ranks, 0)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = through_json(loader.state_dict())
    assert state["sampler"] == {"at": 3 * 2 * ranks}
    wanted = ids(iterator)
    again = prepare(make(workers), ranks, 0)
    again.load_state_dict(state)
    assert epochs(again, 1) == [wanted]


def test_a_loader_that_was_shared_out_before_goes_on() -> None:
    def make(count: int, rank: int) -> Any:
        sampler = DistributedSampler(range(24), count, rank, shuffle=True, seed=3)
        return prepare(DataLoader(Numbers(24), batch_size=2, sampler=sampler), count, rank)

    first = [make(2, rank) for rank in range(2)]
    for loader in first:
        epochs(loader, 1)
    held = [iter(loader) for loader in first]
    seen = [number for iterator in held for number in flat(itertools.islice(iterator, 3))]
    state = through_json(first[0].state_dict())
    assert (state["epoch"], state["samples"]) == (1, 12)
    for count in (2, 3, 4):
        second = [make(count, rank) for rank in range(count)]
        for loader in second:
            loader.load_state_dict(state)
        assert sorted(seen + [number for loader in second for number in flat(loader)]) == list(range(24))
    with pytest.raises(CheckpointMismatchError, match="is at 12 of the epoch"):
        make(5, 0).load_state_dict(state)


class Mine(DataLoader):
    """Iterates in its own way."""

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            yield batch + 100


def test_a_loader_with_its_own_iteration_goes_on_by_counting() -> None:
    loader = prepare(Mine(Numbers(20), batch_size=3, shuffle=True), 2, 1, data_seed=4)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = loader.state_dict()
    wanted = [ids(iterator), *epochs(loader, 1)]
    again = prepare(Mine(Numbers(20), batch_size=3, shuffle=True), 2, 1, data_seed=4)
    again.load_state_dict(state)
    assert epochs(again, 2) == wanted


def test_batches_to_leave_out_are_counted_from_the_beginning_of_the_epoch_also_after_loading() -> None:
    loader = prepare(DataLoader(Numbers(12), batch_size=2, shuffle=True), data_seed=1)
    order = epochs(loader, 3)
    loader.load_state_dict({"version": 1, "epoch": 1, "batches": 2, "samples": 4, "length": 12, "seed": 1})
    assert epochs(skip_first_batches(loader, 2), 1) == [order[1][2:]]
    assert epochs(loader, 1) == [order[2]]


def test_one_record_of_a_lone_process() -> None:
    loader = prepare(DataLoader(Numbers(12), batch_size=2, shuffle=True))
    next(iter(loader))
    assert loader.gather_state() == loader.state_dict()


def test_batches_of_equal_samples_go_on_by_their_sampler() -> None:
    """A batch sampler of torch over a list, which is its own order."""
    batches = BatchSampler([4, 1, 3, 0, 2], 2, False)
    loader = prepare(DataLoader(Numbers(5), batch_sampler=batches))
    iterator = iter(loader)
    assert next(iterator).tolist() == [4, 1]
    again = prepare(DataLoader(Numbers(5), batch_sampler=batches))
    again.load_state_dict(loader.state_dict())
    assert ids(again) == [[3, 0], [2]]
