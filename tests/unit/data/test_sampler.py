"""Which indices a rank gets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from accelerate.data.sampler import (
    BatchSamplerShard,
    DrawnRandomSampler,
    SeedableRandomSampler,
    SkipBatchSampler,
    get_sampler,
)
from accelerate.data.source import Feed
from accelerate.errors import PrepareError
from loaders import Numbers

LENGTHS = (0, 1, 2, 3, 5, 7, 8, 9, 12, 16, 17, 23, 24)
CASES = [
    (length, size, ranks, drop_last)
    for length, size, ranks, drop_last in itertools.product(LENGTHS, (1, 2, 3, 4, 6), (2, 3, 4), (False, True))
]


def shards(batch_sampler: BatchSampler, ranks: int, **how: bool) -> list[BatchSamplerShard]:
    return [BatchSamplerShard(batch_sampler, ranks, rank, **how) for rank in range(ranks)]


def flat(batches: list[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


@pytest.mark.parametrize("split", [False, True])
def test_even_ranks_together_see_what_one_process_sees(split: bool) -> None:
    for length, size, ranks, drop_last in CASES:
        if split and size % ranks:
            continue
        plain = list(BatchSampler(range(length), size, drop_last))
        parts = shards(BatchSampler(range(length), size, drop_last), ranks, split_batches=split)
        got = [list(part) for part in parts]
        case = (length, size, ranks, drop_last, split)
        assert [len(part) for part in parts] == [len(batches) for batches in got], case
        assert len({len(batches) for batches in got}) == 1, case
        share = size // ranks if split else size
        assert all(len(batch) == share for batches in got for batch in batches), case
        together = [flat(list(step)) for step in zip(*got, strict=True)]
        whole = flat(plain)[: len(flat(plain)) // (share * ranks) * share * ranks] if drop_last else flat(plain)
        assert flat(together)[: len(whole)] == whole, case
        filled = flat(together)[len(whole) :]
        assert filled == [whole[i % len(whole)] for i in range(len(filled))], case
        assert len(filled) < share * ranks, case
        assert parts[0].emission.filled == bool(filled), case
        if got[0]:
            assert parts[0].emission.total == len(got[0]), case
            assert parts[0].emission.real == share * ranks - len(filled), case


def test_uneven_ranks_together_see_every_sample_once() -> None:
    for length, size, ranks, drop_last in CASES:
        for split in (False, True):
            if split and size % ranks:
                continue
            parts = shards(BatchSampler(range(length), size, drop_last), ranks, split_batches=split, even_batches=False)
            got = [list(part) for part in parts]
            case = (length, size, ranks, drop_last, split)
            if not split:
                assert [len(part) for part in parts] == [len(batches) for batches in got], case
            whole = BatchSampler(range(length), size, drop_last)
            wanted = flat(list(whole)[: len(whole) // ranks * ranks] if drop_last and not split else list(whole))
            assert sorted(flat([flat(batches) for batches in got])) == wanted, case
            for part, batches in zip(parts, got, strict=True):
                assert part.emission.total == len(batches), case


def test_each_rank_gets_its_own_batch_in_turn() -> None:
    first, second = shards(BatchSampler(range(10), 4, False), 2)
    assert list(first) == [[0, 1, 2, 3], [8, 9, 0, 1]]
    assert list(second) == [[4, 5, 6, 7], [2, 3, 4, 5]]


def test_split_gives_each_rank_its_part_of_every_batch() -> None:
    first, second = shards(BatchSampler(range(10), 4, False), 2, split_batches=True)
    assert list(first) == [[0, 1], [4, 5], [8, 9]]
    assert list(second) == [[2, 3], [6, 7], [0, 1]]


def test_a_batch_that_cannot_be_split_is_named() -> None:
    with pytest.raises(PrepareError, match="a batch of 5 cannot be cut into 2 equal parts"):
        BatchSamplerShard(BatchSampler(range(10), 5, False), 2, 0, split_batches=True)


def test_the_number_of_ranks_is_looked_at_when_an_iteration_begins() -> None:
    plain = BatchSampler(range(10), 3, False)
    shard = BatchSamplerShard(plain, 2, 1)
    shard.num_processes, shard.process_index = 1, 0
    assert list(shard) == list(plain)
    assert len(shard) == len(plain)
    assert shard.batch_sampler is plain


class Buckets:
    """Batches of different sizes."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[list[int]]:
        start = 0
        for size in self.sizes:
            yield list(range(start, start + size))
            start += size

    def __len__(self) -> int:
        return len(self.sizes)


SIZES = [9, 1, 8, 2, 7, 3, 6, 4, 5, 5, 9, 1, 9, 1, 9, 1]


@pytest.mark.parametrize("ranks", [2, 4])
def test_batches_of_no_fixed_size_are_shared_out_by_size(ranks: int) -> None:
    got = [list(part) for part in shards(Buckets(SIZES), ranks)]
    assert [len(batches) for batches in got] == [len(SIZES) // ranks] * ranks
    assert sorted(flat([flat(batches) for batches in got])) == list(range(sum(SIZES)))
    loads = [len(flat(batches)) for batches in got]
    in_turn = [sum(SIZES[rank::ranks]) for rank in range(ranks)]
    assert max(loads) - min(loads) <= 8 < max(in_turn) - min(in_turn)


def test_a_short_step_of_batches_of_no_fixed_size_is_filled_with_whole_batches() -> None:
    parts = shards(Buckets([3, 1, 2]), 2)
    got = [list(part) for part in parts]
    assert [batches[-1] for batches in got] == [[4, 5], [0, 1, 2]]
    assert parts[0].emission.filled and parts[0].emission.real == 2


def test_who_gets_what_by_size_is_the_same_after_a_resume() -> None:
    for rank in range(2):
        whole = list(BatchSamplerShard(Buckets(SIZES), 2, rank))
        rest = BatchSamplerShard(Buckets(SIZES), 2, rank)
        rest.feed = Feed.skipping(3, rest)
        assert list(rest) == whole[3:]


def test_what_fills_the_last_step_is_the_same_after_a_resume() -> None:
    for sampler in (SequentialSampler(range(21)), SeedableRandomSampler(range(21), data_seed=5), list(range(21))[::-1]):
        for rank in range(2):
            shard = BatchSamplerShard(BatchSampler(sampler, 4, False), 2, rank)
            whole = list(shard)
            for steps in range(len(whole) + 1):
                shard.feed = Feed.skipping(steps, shard)
                assert list(shard) == whole[steps:]


def test_skipping_leaves_the_rest() -> None:
    plain = BatchSampler(range(20), 3, False)
    assert list(SkipBatchSampler(plain, 4)) == list(plain)[4:]
    assert len(SkipBatchSampler(plain, 4)) == 3
    assert SkipBatchSampler(plain, 4).total_length == 7
    assert list(SkipBatchSampler(plain, 40)) == [] and len(SkipBatchSampler(plain, 40)) == 0
    assert list(SkipBatchSampler(Buckets([1, 2, 3]), 1)) == [[1, 2], [3, 4, 5]]
    assert list(SkipBatchSampler(SkipBatchSampler(plain, 2), 2)) == list(plain)[4:]
    shard = BatchSamplerShard(plain, 2, 1)
    assert list(SkipBatchSampler(shard, 2)) == list(shard)[2:]
    assert SkipBatchSampler(shard, 1).total_length == len(shard)


def test_attributes_of_the_batch_sampler_stay_in_reach() -> None:
    inner = Buckets([2, 1])
    inner.name = "mine"
    shard = BatchSamplerShard(inner, 2, 0)
    assert shard.name == "mine" and shard.sizes == [2, 1]
    assert shard.total_length == 2
    assert SkipBatchSampler(inner, 1).name == "mine"
    with pytest.raises(AttributeError):
        _ = shard.nothing_of_the_kind


def test_a_seedable_order_depends_on_seed_and_epoch_alone() -> None:
    sampler = SeedableRandomSampler(range(50), data_seed=3)
    first = list(sampler)
    torch.manual_seed(99)
    assert list(sampler) == first
    sampler.set_epoch(1)
    second = list(sampler)
    assert second != first and sorted(second) == list(range(50))
    assert list(SeedableRandomSampler(range(50), data_seed=40)) != second
    again = SeedableRandomSampler(range(50), data_seed=3)
    again.set_epoch(1)
    assert list(again) == second


def test_a_seedable_order_takes_its_seed_from_the_generator_or_from_torch() -> None:
    generator = torch.Generator()
    generator.manual_seed(12)
    assert SeedableRandomSampler(range(5), generator=generator).initial_seed == 12
    torch.manual_seed(7)
    assert SeedableRandomSampler(range(5)).initial_seed == 7


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"num_samples": 20},
        {"num_samples": 130},
        {"replacement": True},
        {"replacement": True, "num_samples": 131},
    ],
)
def test_an_order_can_begin_anywhere(how: dict[str, int]) -> None:
    sampler = SeedableRandomSampler(range(50), data_seed=1, **how)
    whole = list(sampler)
    assert len(whole) == len(sampler)
    for start in (0, 1, 31, 32, 50, 51, 129):
        assert list(sampler.from_index(start)) == whole[start:]


@pytest.mark.parametrize("how", [{}, {"num_samples": 20}, {"num_samples": 130}, {"replacement": True}])
def test_a_drawn_order_is_the_one_torch_draws(how: dict[str, int]) -> None:
    torch.manual_seed(5)
    plain = [list(RandomSampler(range(50), **how)) for _ in range(2)]
    after = torch.get_rng_state()
    torch.manual_seed(5)
    sampler = DrawnRandomSampler(range(50), **how)
    assert [list(sampler) for _ in range(2)] == plain
    assert torch.equal(torch.get_rng_state(), after)
    sampler.forced = sampler.key
    assert list(sampler) == plain[1]
    assert torch.equal(torch.get_rng_state(), after)


def test_get_sampler_finds_the_sampler_of_single_samples() -> None:
    loader = DataLoader(Numbers(8), batch_size=2, shuffle=True)
    assert get_sampler(loader) is loader.sampler
    own = DataLoader(Numbers(8), batch_sampler=BatchSampler(SequentialSampler(range(8)), 2, False))
    assert get_sampler(own) is own.batch_sampler.sampler


def test_the_seedable_order_is_that_of_the_sum_of_seed_and_epoch() -> None:
    """Runs that began under release 1.15.0 go on in the same order."""
    sampler = SeedableRandomSampler(range(23), data_seed=42)
    assert list(sampler)[:6] == [16, 8, 6, 17, 2, 0]
    sampler.set_epoch(1)
    assert list(sampler)[:6] == [13, 17, 16, 20, 18, 7]
    sampler.initial_seed = (1 << 64) - 1
    assert list(sampler) == list(SeedableRandomSampler(range(23), data_seed=0))
