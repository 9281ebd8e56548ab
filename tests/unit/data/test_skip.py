"""Leaving out the first batches of an epoch."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from accelerate.data.shard import DataLoaderShard
from accelerate.data.skip import SkipDataLoader, skip_first_batches
from accelerate.state import GradientState
from loaders import Numbers, Stream, ids, prepare


@pytest.mark.parametrize("dataset", [Numbers, Stream])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("split", [False, True])
def test_the_rest_of_a_prepared_loader(dataset: Any, ranks: int, split: bool) -> None:
    for rank in range(ranks):

        def make() -> Any:
            how = {"split_batches": split, "dispatch_batches": False}
            return prepare(DataLoader(dataset(23), batch_size=4), ranks, rank, **how)  # noqa: B023

        whole = ids(make())
        for skipped in range(len(whole) + 1):
            rest = skip_first_batches(make(), skipped)
            assert ids(rest) == whole[skipped:], (rank, skipped)
            if dataset is Numbers:
                assert len(rest) == len(whole) - skipped
        twice = skip_first_batches(skip_first_batches(make(), 1), 1)
        assert ids(twice) == whole[2:]


def test_the_rest_is_a_view_of_the_loader() -> None:
    device = torch.device("meta")
    loader = prepare(DataLoader(Numbers(12), batch_size=2, shuffle=True), device=device, data_seed=1)
    rest = skip_first_batches(loader, 4)
    assert type(rest) is type(loader) and rest.batch_sampler is loader.batch_sampler and rest.dataset is loader.dataset
    state = GradientState()
    seen = [(batch.device, rest.end_of_dataloader, state.end_of_dataloader, rest.batches_left) for batch in rest]
    assert seen == [(device, False, False, 1), (device, True, True, 0)]
    assert loader.iteration == 1, "the epoch of the loader is over too"


def test_after_the_rest_of_an_epoch_comes_the_next() -> None:
    loader = prepare(DataLoader(Numbers(12), batch_size=2, shuffle=True), data_seed=1)
    epochs = [ids(loader) for _ in range(3)]
    loader.set_epoch(0)
    assert ids(skip_first_batches(loader, 2)) == epochs[0][2:]
    assert ids(loader) == epochs[1]
    rest = skip_first_batches(loader, 5)
    rest.set_epoch(1)
    assert ids(rest) == epochs[1][5:]
    assert ids(rest) == epochs[2][5:], "every iteration leaves them out"


def test_a_place_in_the_rest_can_be_saved() -> None:
    loader = prepare(DataLoader(Numbers(12), batch_size=2, shuffle=True), data_seed=1)
    whole = ids(loader)
    loader.set_epoch(0)
    rest = iter(skip_first_batches(loader, 2))
    next(rest)
    state = loader.state_dict()
    assert (state["epoch"], state["samples"]) == (0, 6)
    again = prepare(DataLoader(Numbers(12), batch_size=2, shuffle=True))
    again.load_state_dict(state)
    assert ids(again) == whole[3:]


def test_45000_batches_are_skipped_without_reading_one() -> None:
    data = Numbers(46_000 * 4)
    for shuffle in (False, True):
        loader = prepare(DataLoader(data, batch_size=4, shuffle=shuffle), 2, 1)
        started = time.perf_counter()
        rest = iter(skip_first_batches(loader, 22_500))
        next(rest)
        took = time.perf_counter() - started
        assert len(data.read) == 4
        data.read.clear()
        assert took < 0.5, "milliseconds on an idle machine"


def test_the_rest_of_a_plain_loader() -> None:
    data = Numbers(10)
    plain = DataLoader(data, batch_size=3)
    rest = skip_first_batches(plain, 2)
    assert type(rest) is DataLoader and len(rest) == 2
    assert ids(rest) == [[6, 7, 8], [9]] == ids(rest) and data.read == [6, 7, 8, 9] * 2
    assert len(ids(plain)) == 4
    assert ids(skip_first_batches(DataLoader(Stream(10), batch_size=3), 2)) == [[6, 7, 8], [9]]
    assert [int(i) for i in skip_first_batches(DataLoader(Numbers(4), batch_size=None), 1)] == [1, 2, 3]


def test_a_loader_that_skips() -> None:
    loader = SkipDataLoader(Numbers(10), skip_batches=2, batch_size=3)
    assert loader.skip_batches == 2 and isinstance(loader, DataLoader)
    ends = [(batch.tolist(), loader.end_of_dataloader) for batch in loader]
    assert ends == [([6, 7, 8], False), ([9], True)]
    stream = SkipDataLoader(Stream(10), skip_batches=2, batch_size=3)
    assert ids(stream) == [[6, 7, 8], [9]] == ids(stream)


def test_a_loader_built_by_hand_skips_in_every_iteration() -> None:
    loader = DataLoaderShard(Numbers(10), skip_batches=3, batch_size=3)
    assert ids(loader) == [[9]] == ids(loader) and len(loader) == 1


def test_fewer_than_none(fresh_state: None) -> None:
    with pytest.raises(ValueError, match="num_batches=-1"):
        skip_first_batches(DataLoader(Numbers(4)), -1)
