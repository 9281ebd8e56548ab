"""Iterating a prepared loader: what arrives, and what is known about the batch in hand."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset, WeightedRandomSampler

from accelerate.data.sampler import BatchSamplerShard, SeedableRandomSampler
from accelerate.data.shard import DataLoaderShard
from accelerate.state import GradientState
from loaders import CPU, Numbers, Stream, flat, ids, prepare

META = torch.device("meta")


@pytest.mark.parametrize("dataset", [Numbers(10), Stream(10)])
@pytest.mark.parametrize("workers", [0, 2])
def test_one_process_gets_what_plain_torch_gives(dataset: Any, workers: int) -> None:
    plain = DataLoader(dataset, batch_size=4, num_workers=workers)
    prepared = prepare(DataLoader(dataset, batch_size=4, num_workers=workers))
    wanted = ids(plain)
    assert ids(prepared) == wanted
    assert ids(prepared) == wanted
    assert len(prepared) == len(plain) if isinstance(dataset, Numbers) else True


@pytest.mark.parametrize("how", [{"batch_size": 4}, {"batch_size": 5}, {"batch_size": 4, "drop_last": True}])
@pytest.mark.parametrize("dataset", [Numbers, Stream])
def test_the_last_batch_is_known_for_what_it_is(dataset: Any, how: dict[str, Any]) -> None:
    loader = prepare(DataLoader(dataset(10), **how))
    state = GradientState()
    ends = [(loader.end_of_dataloader, state.end_of_dataloader, state.in_dataloader) for _ in loader]
    assert ends == [(False, False, True)] * (len(ends) - 1) + [(True, True, True)]
    assert not state.in_dataloader and not state.end_of_dataloader


def test_how_many_samples_of_the_last_step_are_real() -> None:
    for length, size, ranks, split in itertools.product((1, 5, 8, 9, 11, 12), (2, 4), (1, 2), (False, True)):
        step = size if split else size * ranks
        for rank in range(ranks):
            loader = prepare(DataLoader(Numbers(length), batch_size=size), ranks, rank, split_batches=split)
            last = [loader.remainder for _ in loader][-1]
            assert last == length % step, (length, size, ranks, split, rank)


def test_how_many_batches_are_left() -> None:
    loader = prepare(DataLoader(Numbers(10), batch_size=2), 2, 0)
    assert loader.batches_left is None
    assert [loader.batches_left for _ in loader] == [2, 1, 0]
    stream = prepare(DataLoader(Stream(10), batch_size=2))
    assert [stream.batches_left for _ in stream] == [None] * 5


def test_the_length_a_sampler_tells_need_not_be_true() -> None:
    class Liar(SequentialSampler):
        def __len__(self) -> int:
            return 100

    loader = prepare(DataLoader(Numbers(10), batch_size=4, sampler=Liar(range(10))))
    seen = [(batch.tolist(), loader.end_of_dataloader) for batch in loader]
    assert seen[-1] == ([8, 9], True) and not seen[-2][1]


def test_nothing_is_fetched_ahead_where_the_sampler_knows_the_end() -> None:
    data = Numbers(10)
    for number, _ in enumerate(prepare(DataLoader(data, batch_size=2)), 1):
        assert len(data.read) == 2 * number


def test_an_evaluation_inside_training_leaves_it_alone() -> None:
    state = GradientState()
    train, evaluate = prepare(DataLoader(Numbers(3), batch_size=1)), prepare(DataLoader(Numbers(2), batch_size=1))
    seen = []
    for _ in train:
        inner = []
        for _ in evaluate:
            assert state.active_dataloader is evaluate
            inner.append(state.end_of_dataloader)
        assert inner == [False, True]
        assert state.active_dataloader is train
        seen.append(state.end_of_dataloader)
    assert seen == [False, False, True]


def test_leaving_a_loader_by_break_ends_it() -> None:
    state = GradientState()
    outer, inner = prepare(DataLoader(Numbers(4), batch_size=1)), prepare(DataLoader(Numbers(4), batch_size=1))
    for _ in outer:
        for _ in inner:
            break
        assert state.active_dataloader is outer and not state.end_of_dataloader
        break
    assert not state.in_dataloader


def test_an_error_in_the_loop_ends_it() -> None:
    loader = prepare(DataLoader(Numbers(4), batch_size=1))

    def leave() -> None:
        for _ in loader:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        leave()
    assert not GradientState().in_dataloader


def test_exact_calls_of_next() -> None:
    state = GradientState()
    loader = prepare(DataLoader(Numbers(4), batch_size=2))
    for _ in range(3):
        iterator = iter(loader)
        assert ids([next(iterator)]) == [[0, 1]] and not state.end_of_dataloader
        assert ids([next(iterator)]) == [[2, 3]] and state.end_of_dataloader
    del iterator
    assert not state.in_dataloader
    assert next(iter(loader)).tolist() == [0, 1]
    assert not state.in_dataloader


def test_two_iterations_of_one_loader_at_once() -> None:
    loader = prepare(DataLoader(Numbers(6), batch_size=2))
    assert [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)] == [
        ([0, 1], [0, 1]),
        ([2, 3], [2, 3]),
        ([4, 5], [4, 5]),
    ]


class Pair(NamedTuple):
    first: torch.Tensor
    second: Any


@dataclass
class Record:
    value: torch.Tensor
    note: str


def mixed(items: list[int]) -> dict[str, Any]:
    numbers = torch.tensor(items)
    return {
        "tensor": numbers,
        "strings": [str(item) for item in items],
        "flags": [item % 2 == 0 for item in items],
        "nothing": None,
        "number": 3,
        "record": Record(numbers, "as it is"),
        "nested": {"pair": Pair(numbers, "text"), "list": [numbers, [None, True]]},
    }


def test_what_is_no_tensor_arrives_as_it_is() -> None:
    loader = prepare(DataLoader(Numbers(2), batch_size=2, collate_fn=mixed), device=META)
    (batch,) = loader
    assert batch["tensor"].device == META and batch["nested"]["pair"].first.device == META
    assert batch["nested"]["list"][0].device == META
    assert (batch["strings"], batch["flags"], batch["nothing"], batch["number"]) == (["0", "1"], [True, False], None, 3)
    assert isinstance(batch["record"], Record) and batch["record"].note == "as it is"
    assert batch["record"].value.device == CPU
    assert isinstance(batch["nested"]["pair"], Pair) and batch["nested"]["pair"].second == "text"
    assert batch["nested"]["list"][1] == [None, True]


def test_without_a_device_nothing_moves() -> None:
    made: list[Any] = []

    def keep(items: list[int]) -> Any:
        made.append(torch.tensor(items))
        return made[-1]

    loader = prepare(DataLoader(Numbers(2), batch_size=1, collate_fn=keep), device=None)
    assert all(given is kept for given, kept in zip(loader, made, strict=False))


class Mine(DataLoader):
    """A user's own loader."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tag = "first"
        self.given = 0

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            self.given += 1
            yield {"numbers": batch, "tag": self.tag}

    def hello(self) -> str:
        return f"hello {self.tag}"


def test_a_loader_of_a_users_own_class_stays_one() -> None:
    plain = Mine(Numbers(6), batch_size=2)
    loader = prepare(plain)
    assert isinstance(loader, Mine) and isinstance(loader, DataLoaderShard) and isinstance(loader, DataLoader)
    assert loader.hello() == "hello first"
    loader.tag = "second"
    assert loader.hello() == "hello second"
    seen = [(batch["numbers"].tolist(), batch["tag"], loader.end_of_dataloader) for batch in loader]
    assert seen == [([0, 1], "second", False), ([2, 3], "second", False), ([4, 5], "second", True)]
    assert loader.given == 3
    assert plain.tag == "first" and [batch["tag"] for batch in plain] == ["first"] * 3


class Crowded(DataLoader):
    """Uses names that prepared loaders use too."""

    begin = "a class attribute"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.device = "mine"
        self.iteration = 0
        self.total_batch_size = 77
        self._run = self._start = self._fetch = self._plan = "mine"

    def __iter__(self) -> Any:
        self.iteration += 10
        self.reset()
        return super().__iter__()

    def reset(self) -> str:
        self.was_reset = True
        return "mine"

    def set_epoch(self, epoch: int) -> None:
        self.epoch_was = epoch


def test_names_that_a_users_own_class_has_stay_its_own() -> None:
    loader = prepare(Crowded(Numbers(4), batch_size=2, shuffle=True), data_seed=1)
    assert sorted(flat(loader)) == [0, 1, 2, 3] and loader.end_of_dataloader
    assert (loader.device, loader.iteration, loader.total_batch_size) == ("mine", 10, 77)
    assert (loader.begin, loader.reset(), loader.was_reset) == ("a class attribute", "mine", True)
    assert {loader._run, loader._start, loader._fetch, loader._plan} == {"mine"}
    loader.total_batch_size = 78
    assert loader.total_batch_size == 78
    loader.set_epoch(5)
    assert loader.epoch_was == 5 and loader.state_dict()["epoch"] == 5


def test_a_loader_of_a_users_own_class_is_shared_out_by_its_sampler() -> None:
    loaders = [prepare(Mine(Numbers(10), batch_size=2), 2, rank) for rank in range(2)]
    seen = [[batch["numbers"].tolist() for batch in loader] for loader in loaders]
    assert seen == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]]


class Maker(DataLoader):
    """Makes batches itself and does not look at the sampler."""

    def __iter__(self) -> Any:
        for start in range(0, len(self.dataset), 2):
            yield [start, start + 1]


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ({}, [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]]),
        ({"even_batches": False}, [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7]]]),
    ],
)
def test_a_loader_that_makes_its_batches_is_shared_out_by_them(how: dict[str, Any], wanted: Any) -> None:
    loaders = [prepare(Maker(Numbers(10), batch_size=2), 2, rank, **how) for rank in range(2)]
    assert [list(loader) for loader in loaders] == wanted


class Itself(DataLoader):
    """A loader that is its own iterator."""

    def __iter__(self) -> Any:
        self.inner = super().__iter__()
        return self

    def __next__(self) -> Any:
        return next(self.inner)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_loader_that_is_its_own_iterator(ranks: int) -> None:
    loaders = [prepare(Itself(Numbers(8), batch_size=2), ranks, rank) for rank in range(ranks)]
    for _ in range(2):
        assert sorted(sum((flat(loader) for loader in loaders), [])) == list(range(8))


def test_a_loader_that_makes_no_batches() -> None:
    entries = [prepare(DataLoader(Numbers(5), batch_size=None), 2, rank) for rank in range(2)]
    assert [[int(entry) for entry in loader] for loader in entries] == [[0, 2, 4], [1, 3, 0]]
    assert [len(loader) for loader in entries] == [3, 3]
    one = prepare(DataLoader(Numbers(3), batch_size=None, shuffle=True))
    assert sorted(int(entry) for entry in one) == [0, 1, 2] and one.end_of_dataloader


def test_what_was_set_on_the_loader_is_kept() -> None:
    generator, started = torch.Generator(), []
    plain = DataLoader(
        Numbers(8),
        batch_size=2,
        num_workers=1,
        generator=generator,
        worker_init_fn=started.append,
        persistent_workers=True,
        prefetch_factor=3,
        timeout=30,
        pin_memory=False,
    )
    loader = prepare(plain, 2, 0)
    for name in ("num_workers", "generator", "worker_init_fn", "persistent_workers", "prefetch_factor", "timeout"):
        assert getattr(loader, name) is getattr(plain, name), name
    assert loader.dataset is plain.dataset and loader.batch_size == 2
    for _ in range(2):
        assert ids(loader) == [[0, 1], [4, 5]]
    workers = loader._iterator
    assert ids(loader) == [[0, 1], [4, 5]] and loader._iterator is workers
    workers._shutdown_workers()


def test_sizes_over_all_ranks() -> None:
    loader = prepare(DataLoader(Numbers(20), batch_size=4), 2, 1)
    assert (loader.total_batch_size, loader.total_dataset_length, loader.batch_size, len(loader)) == (8, 20, 4, 3)
    split = prepare(DataLoader(Numbers(20), batch_size=4), 2, 1, split_batches=True)
    assert (split.total_batch_size, split.batch_size, len(split)) == (4, 2, 5)
    stream = prepare(DataLoader(Stream(20), batch_size=4), 2, 1, dispatch_batches=False)
    assert stream.total_batch_size == 8
    assert loader._is_accelerate_prepared


def test_a_loader_built_by_hand() -> None:
    sampler = BatchSamplerShard(BatchSampler(range(10), 2, False), 2, 1)
    loader = DataLoaderShard(Numbers(10), device=META, batch_sampler=sampler, skip_batches=1, iteration=3)
    assert loader.iteration == 3 and loader.batch_sampler is sampler
    batches = list(loader)
    assert [batch.device for batch in batches] == [META, META] and len(loader) == 2
    assert loader.iteration == 4


def test_the_order_of_a_weighted_sampler_is_the_same_on_every_rank() -> None:
    def loader(rank: int) -> Any:
        torch.manual_seed(100 + rank)
        weights = WeightedRandomSampler([0.1, 0.4, 0.2, 0.3] * 5, 20, replacement=False)
        return prepare(DataLoader(Numbers(20), batch_size=2, sampler=weights), 2, rank, data_seed=1)

    first, second = loader(0), loader(1)
    for _ in range(2):
        seen = flat(first) + flat(second)
        assert sorted(seen) == list(range(20)) and seen != sorted(seen)


def test_a_sampler_that_draws_from_the_global_state_is_the_same_on_every_rank() -> None:
    import random

    class Drawing:
        def __iter__(self) -> Any:
            numbers = torch.randperm(12).tolist()
            while numbers:
                yield numbers.pop(random.randrange(len(numbers)))

        def __len__(self) -> int:
            return 12

    loaders = [prepare(DataLoader(Numbers(12), batch_size=2, sampler=Drawing()), 2, r, data_seed=4) for r in (0, 1)]
    before = torch.get_rng_state(), random.getstate()
    seen = []
    for rank, loader in enumerate(loaders):
        torch.manual_seed(rank)
        random.seed(rank)
        seen += flat(loader)
    assert sorted(seen) == list(range(12))
    torch.set_rng_state(before[0])
    random.setstate(before[1])
    loader = prepare(DataLoader(TensorDataset(torch.zeros(12)), batch_size=2, sampler=Drawing()))
    for _ in loader:
        pass
    assert random.getstate() == before[1]


def test_an_epoch_given_to_the_sampler_itself_counts() -> None:
    loader = prepare(DataLoader(Numbers(20), batch_size=5, shuffle=True), data_seed=3)
    sampler = loader.batch_sampler.batch_sampler.sampler
    assert isinstance(sampler, SeedableRandomSampler) and loader.get_sampler() is sampler
    epochs = [flat(loader) for _ in range(3)]
    sampler.set_epoch(1)
    assert flat(loader) == epochs[1] and flat(loader) == epochs[2]
    loader.set_epoch(0)
    assert flat(loader) == epochs[0]


def test_a_sampler_can_be_replaced() -> None:
    loader = prepare(DataLoader(Numbers(6), batch_size=2), 2, 0)
    loader.set_sampler([5, 4, 3, 2, 1, 0])
    assert ids(loader) == [[5, 4], [1, 0]]
    assert loader.get_sampler() == [5, 4, 3, 2, 1, 0]
