"""Loaders on ranks that are processes: random states apart, real exchanges, ranks that leave."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, WeightedRandomSampler, get_worker_info

from accelerate import Accelerator
from accelerate.comm import here
from accelerate.data.prepare import Part, prepare_loader
from accelerate.errors import CheckpointMismatchError, CollectiveError, PrepareError, RankLeftError
from accelerate.state import PartialState
from accelerate.test_utils.world import fork_world, run_world
from accelerate.utils import DataLoaderConfiguration
from loaders import Numbers, Stream, flat, prepare

QUICK = {"ACCELERATE_HANG_TIMEOUT": "6"}


def prepared(make: Any, rank: int, n: int, **how: Any) -> Any:
    PartialState(cpu=True)
    return prepare(make(), n, rank, **how)


class Drawing(Sampler):
    """Draws from torch's global state."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(24).tolist())

    def __len__(self) -> int:
        return 24


ORDERS = {
    "shuffled": lambda: DataLoader(Numbers(24), batch_size=2, shuffle=True),
    "own generator": lambda: DataLoader(
        Numbers(24), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(torch.initial_seed())
    ),
    "weighted": lambda: DataLoader(
        Numbers(24), batch_size=2, sampler=WeightedRandomSampler([1.0] * 24, 24, replacement=False)
    ),
    "global state": lambda: DataLoader(Numbers(24), batch_size=2, sampler=Drawing()),
    "workers": lambda: DataLoader(Numbers(24), batch_size=2, shuffle=True, num_workers=1),
}


@pytest.mark.parametrize("seedable", [True, False])
def test_ranks_with_random_states_of_their_own_agree_on_the_order(seedable: bool) -> None:
    def each(rank: int, n: int) -> dict[str, list[list[int]]]:
        torch.manual_seed(1000 + rank)
        found = {}
        for name, make in ORDERS.items():
            loader = prepared(make, rank, n, use_seedable_sampler=seedable)
            epochs = []
            for _ in range(2):
                epochs.append(flat(loader))
                torch.rand(rank + 1)
            found[name] = epochs
        return found

    first, second = run_world(each, 2, "fork")
    for name in ORDERS:
        orders = [a + b for a, b in zip(first[name], second[name], strict=True)]
        assert all(sorted(order) == list(range(24)) for order in orders), name
        assert orders[0] != orders[1], name


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_sees_every_item_once_and_resumes(workers: int) -> None:
    def make() -> DataLoader:
        return DataLoader(Numbers(16), batch_size=2, shuffle=True, num_workers=workers)

    def first(rank: int, n: int) -> Any:
        torch.manual_seed(rank)
        loader = prepared(make, rank, n, use_stateful_dataloader=True)
        assert loader.use_stateful_dataloader
        whole = flat(loader)
        iterator = iter(loader)
        seen = flat(itertools.islice(iterator, 2))
        return whole, seen, loader.gather_state(), flat(iterator)

    def second(rank: int, n: int) -> list[int]:
        torch.manual_seed(50 + rank)
        loader = prepared(make, rank, n, use_stateful_dataloader=True)
        loader.load_state_dict(state)
        return flat(loader)

    told = run_world(first, 2, "fork")
    assert sorted(told[0][0] + told[1][0]) == list(range(16))
    state = told[0][2]
    assert told[1][2] == state
    assert run_world(second, 2, "fork") == [rest for *_, rest in told]
    assert sorted(number for _, seen, _, rest in told for number in seen + rest) == list(range(16))


class Aware(IterableDataset):
    """Divides itself among workers; writes down what is read."""

    def __init__(self, length: int, log: Path) -> None:
        self.length = length
        self.log = log

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, self.length, step):
            with self.log.open("a") as log:
                log.write(f"{number}\n")
            yield number


def test_a_stream_is_divided_at_its_source(tmp_path: Path) -> None:
    log = tmp_path / "read"

    def each(rank: int, n: int) -> list[int]:
        return flat(prepared(lambda: DataLoader(Aware(100, log), batch_size=10), rank, n, dispatch_batches=False))

    first, second = run_world(each, 2, "fork")
    assert sorted(first + second) == list(range(100)) == sorted(map(int, log.read_text().split()))


class Pieces(IterableDataset):
    """Can cut itself, in pieces that differ in length."""

    def __init__(self, pieces: list[list[int]]) -> None:
        self.pieces = pieces

    def shard(self, num_shards: int, index: int) -> Pieces:
        return Pieces(self.pieces[index::num_shards])

    def __iter__(self) -> Iterator[int]:
        return itertools.chain(*self.pieces)


@pytest.mark.parametrize("longer", [0, 1])
def test_parts_that_differ_in_length_give_the_same_number_of_batches(longer: int) -> None:
    def each(rank: int, n: int) -> Any:
        pieces = [list(range(100, 104)), list(range(100, 104))]
        pieces[longer] = list(range(9))
        loader = prepared(lambda: DataLoader(Pieces(pieces), batch_size=2), rank, n, dispatch_batches=False)
        seen = [(batch.tolist(), loader.end_of_dataloader, loader.real_counts) for batch in loader]
        return seen, loader.remainder

    told = run_world(each, 2, "fork")
    (full, _), (short, _) = told[longer], told[1 - longer]
    assert [batch for batch, *_ in full] == [[0, 1], [2, 3], [4, 5], [6, 7], [8]]
    assert [batch for batch, *_ in short] == [[100, 101], [102, 103], [100, 101], [100, 101], [100, 101]]
    assert [end for _, end, _ in full] == [end for _, end, _ in short] == [False] * 4 + [True]
    assert [counts[longer] for *_, counts in full] == [2, 2, 2, 2, 1]
    assert [counts[1 - longer] for *_, counts in full] == [2, 2, 0, 0, 0]
    assert {remainder for _, remainder in told} == {1 if longer == 0 else -1}, (
        "cut at the end where that leaves the real"
    )


def test_a_part_with_nothing_in_it_is_named() -> None:
    def each(rank: int, n: int) -> None:
        make = lambda: DataLoader(Pieces([[1, 2], []]), batch_size=2)
        flat(prepared(make, rank, n, dispatch_batches=False))

    outcomes = fork_world(each, 2, linger=False).outcomes()
    assert all(isinstance(outcome.error, PrepareError) for outcome in outcomes)
    assert "Rank 1 got nothing from the dataset" in str(outcomes[0].error)


def test_the_place_in_a_dataset_that_divides_itself_belongs_to_its_number_of_ranks(tmp_path: Path) -> None:
    make = lambda: DataLoader(Aware(40, tmp_path / "read"), batch_size=2)

    def first(rank: int, n: int) -> Any:
        loader = prepared(make, rank, n, dispatch_batches=False)
        iterator = iter(loader)
        next(iterator), next(iterator)
        return loader.gather_state(), flat(iterator)

    def second(rank: int, n: int) -> list[int]:
        loader = prepared(make, rank, n, dispatch_batches=False)
        loader.load_state_dict(state)
        return flat(loader)

    told = run_world(first, 2, "fork")
    state = told[0][0]
    assert state["ranks"] == 2
    assert run_world(second, 2, "fork") == [rest for _, rest in told]
    with pytest.raises(CheckpointMismatchError, match="taken on 2 ranks from a dataset that divides itself"):
        prepare(make(), 3, 0, dispatch_batches=False).load_state_dict(state)


def test_ranks_at_different_places_have_no_common_state() -> None:
    def each(rank: int, n: int) -> str:
        loader = prepared(lambda: DataLoader(Numbers(8), batch_size=1), rank, n)
        flat(itertools.islice(iter(loader), 1 + rank))
        with pytest.raises(CollectiveError) as told:
            loader.gather_state()
        return str(told.value)

    first, second = run_world(each, 2, "fork")
    assert first == second
    assert "rank 0 at batch 2 of epoch 0, rank 1 at batch 4 of epoch 0" in first


class Ragged(IterableDataset):
    """Items that differ in length, and things that are no tensors."""

    def __iter__(self) -> Any:
        for length in (3, 1, 4, 1, 5, 9, 20_000, 2):
            yield {"x": torch.arange(length), "text": "t" * length, "flag": length > 2, "none": None}


@pytest.mark.parametrize("ranks", [2, 4])
def test_whatever_rank_0_reads_arrives(ranks: int) -> None:
    def each(rank: int, n: int) -> Any:
        loader = prepared(lambda: DataLoader(Ragged(), batch_size=1, collate_fn=lambda items: items[0]), rank, n)
        return [
            (batch["x"].numel(), int(batch["x"].sum()), len(batch["text"]), batch["flag"], batch["none"])
            for batch in loader
        ]

    lengths = [3, 1, 4, 1, 5, 9, 20_000, 2]
    for rank, seen in enumerate(run_world(each, ranks, "fork")):
        assert seen == [(k, k * (k - 1) // 2, k, k > 2, None) for k in lengths[rank::ranks]]


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_rank_that_leaves_the_loop_is_named_within_seconds(leaver: int) -> None:
    def each(rank: int, n: int) -> float:
        loader = prepared(lambda: DataLoader(Stream(1000), batch_size=1), rank, n)
        started = time.monotonic()
        for number, _ in enumerate(loader):
            if rank == leaver and number == 2:
                break  # the line where it leaves
        if rank == leaver:
            time.sleep(5)
            return 0.0
        return time.monotonic() - started

    started = time.monotonic()
    outcomes = {outcome.rank: outcome for outcome in fork_world(each, 2, env=QUICK, linger=False).outcomes()}
    assert time.monotonic() - started < 30
    stays = outcomes[1 - leaver]
    assert stays.ended == "raised" and isinstance(stays.error, RankLeftError), stays.describe()
    lines = Path(__file__).read_text().splitlines()
    line = next(i for i, text in enumerate(lines, 1) if text.endswith("# the line where it leaves"))
    assert f"rank {leaver}: left loop 1 over loader" in str(stays.error)
    assert f"{Path(__file__).name}:{line} in each" in str(stays.error)


@pytest.mark.parametrize("how", ["raises", "dies"])
def test_a_rank_that_ends_inside_the_loop_is_named(how: str) -> None:
    def each(rank: int, n: int) -> None:
        loader = prepared(lambda: DataLoader(Stream(1000), batch_size=1), rank, n)
        for number, _ in enumerate(loader):
            if rank == 1 and number == 2:
                if how == "dies":
                    os._exit(3)
                raise KeyError("mine")

    started = time.monotonic()
    outcomes = {outcome.rank: outcome for outcome in fork_world(each, 2, env=QUICK, linger=False).outcomes()}
    assert time.monotonic() - started < 30
    stays = outcomes[0]
    assert stays.ended == "raised" and isinstance(stays.error, RankLeftError), stays.describe()
    assert "rank 1" in str(stays.error) and "the next batch of a loader that rank 0 reads" in str(stays.error)


def test_random_states_named_in_rng_types_are_in_step_when_an_epoch_begins() -> None:
    def each(rank: int, n: int) -> list[float]:
        PartialState(cpu=True)
        torch.manual_seed(rank)
        plain = DataLoader(Numbers(8), batch_size=2)
        how = {"shard": Part(count=n, index=rank), "device": None, "config": DataLoaderConfiguration()}
        loader = prepare_loader(plain, rng_types=["torch", "generator"], **how)
        drawn = []
        for _ in range(2):
            torch.rand(rank)
            next(iter(loader))
            drawn.append(torch.rand(1).item())
        next(iterator := iter(loader))
        state = loader.state_dict()
        loader.load_state_dict(state)
        torch.manual_seed(rank)
        next(iterator := iter(loader))
        return [*drawn, torch.rand(1).item(), len(list(iterator))]

    first, second = run_world(each, 2, "fork")
    assert first[:2] == second[:2]
    assert first[2] != second[2], "going on moves nothing"


def test_ranks_that_leave_a_loop_together_go_on() -> None:
    def each(rank: int, n: int) -> Any:
        loader = prepared(lambda: DataLoader(Stream(20), batch_size=1), rank, n)
        seen = []
        for _ in range(3):
            for batch in loader:
                seen += batch.tolist()
                if len(seen) % 2 == 0:
                    break
        return seen, flat(loader)

    for rank, (seen, whole) in enumerate(run_world(each, 2, "fork")):
        assert seen == [rank, rank + 2] * 3 and whole == list(range(rank, 20, 2))


def test_a_loader_that_is_open_when_the_program_ends_says_nothing(tmp_path: Path) -> None:
    script = tmp_path / "ends.py"
    script.write_text(
        "from torch.utils.data import DataLoader\n"
        "from accelerate import Accelerator\n"
        "loader = Accelerator(cpu=True).prepare(DataLoader(range(8), batch_size=2))\n"
        "batches = iter(loader)\n"
        "print(next(batches).tolist())\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 1]\n", "")


def test_the_whole_way_through_an_accelerator() -> None:
    def each(rank: int, n: int) -> Any:
        torch.manual_seed(rank)
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=True))
        train = accelerator.prepare(DataLoader(Numbers(21), batch_size=2, shuffle=True))
        stream = accelerator.prepare(DataLoader(Stream(9), batch_size=2))
        seen = [accelerator.gather_for_metrics(batch).tolist() for batch in train]
        told = [accelerator.gather_for_metrics(batch).tolist() for batch in stream]
        return seen, told, here.collectives().size

    first, second = run_world(each, 2, "fork")
    assert first == second and first[2] == 2
    seen, told, _ = first
    assert sorted(number for batch in seen for number in batch) == list(range(21))
    assert [number for batch in told for number in batch] == list(range(9))
