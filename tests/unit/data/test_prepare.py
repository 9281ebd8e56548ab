"""What prepare decides: how a loader is shared out, in which order, and what it refuses."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import accelerate.data_loader as public
from accelerate.data.dispatch import DataLoaderDispatcher
from accelerate.data.prepare import _part_of_mesh, prepare_data_loader
from accelerate.data.sampler import BatchSamplerShard, DrawnRandomSampler, SeedableRandomSampler
from accelerate.data.shard import DataLoaderShard
from accelerate.data.skip import skip_first_batches
from accelerate.errors import MisplacedArgumentError, PrepareError
from accelerate.state import PartialState
from loaders import CPU, Numbers, Stream, flat, ids, prepare


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_sampler_that_shares_out_already_is_recognised(shuffle: bool) -> None:
    def loader(rank: int) -> Any:
        sampler = DistributedSampler(range(16), 2, rank, shuffle=shuffle, seed=3)
        return prepare(DataLoader(Numbers(16), batch_size=2, sampler=sampler), 2, rank)

    loaders = [loader(rank) for rank in range(2)]
    seen = [flat(each) for each in loaders]
    assert sorted(seen[0] + seen[1]) == list(range(16)) and [len(part) for part in seen] == [8, 8]
    assert [len(each) for each in loaders] == [4, 4] and loaders[0].total_batch_size == 4
    again = [flat(each) for each in loaders]
    assert (again == seen) is not shuffle, "the epoch reaches the sampler"


def test_what_a_distributed_sampler_repeats_is_told_rank_by_rank() -> None:
    for drop_last, wanted in ((False, [3, 3, 2, 2]), (True, None)):
        for rank in range(4):
            sampler = DistributedSampler(range(10), 4, rank, shuffle=False, drop_last=drop_last)
            loader = prepare(DataLoader(Numbers(10), batch_size=3, sampler=sampler), 4, rank)
            told = [(batch.tolist(), loader.real_counts, loader.remainder) for batch in loader]
            assert told[-1][1:] == (wanted, 0)
            if wanted is not None:
                own = told[-1][0][: wanted[rank]]
                assert own == list(range(10))[rank::4]


@pytest.mark.parametrize("where", ["argument", "loader", "dataset", "sampler"])
def test_a_loader_of_a_part_can_be_declared_so(where: str) -> None:
    seen = []
    for rank in range(2):
        data = TensorDataset(torch.arange(8) + 8 * rank)
        sampler = SequentialSampler(data)
        plain = DataLoader(data, batch_size=2, sampler=sampler)
        owner = {"loader": plain, "dataset": data, "sampler": sampler}.get(where)
        if owner is not None:
            owner.already_sharded = True
        loader = prepare(plain, 2, rank, already_sharded=where == "argument")
        seen += [number for (batch,) in loader for number in batch.tolist()]
    assert seen == list(range(16))


def test_a_stream_of_a_part_can_be_declared_so() -> None:
    loader = prepare(DataLoader(Stream(6), batch_size=2), 2, 1, already_sharded=True)
    assert isinstance(loader, DataLoaderShard) and ids(loader) == [[0, 1], [2, 3], [4, 5]]


def test_a_sampler_for_another_number_of_parts_is_refused() -> None:
    sampler = DistributedSampler(range(16), 4, 1)
    with pytest.raises(PrepareError, match="num_replicas=4 parts, but here are 2"):
        prepare(DataLoader(Numbers(16), sampler=sampler), 2, 1)


def test_a_sampler_for_one_replica_does_not_share_out() -> None:
    loaders = [
        prepare(DataLoader(Numbers(8), batch_size=2, sampler=DistributedSampler(range(8), 1, 0)), 2, rank)
        for rank in range(2)
    ]
    assert sorted(flat(loaders[0]) + flat(loaders[1])) == list(range(8))


def test_what_is_prepared_passes_through() -> None:
    loader = prepare(DataLoader(Numbers(8), batch_size=2), 2, 0)
    assert prepare(loader, 2, 0) is loader


def test_what_is_left_of_an_unprepared_stream_is_not_shared_out() -> None:
    with pytest.raises(PrepareError, match="Prepare the loader first, then call skip_first_batches"):
        prepare(skip_first_batches(DataLoader(Stream(8), batch_size=2), 1), 2, 0)


def test_what_is_left_of_an_unprepared_loader_is_shared_out() -> None:
    rest = skip_first_batches(DataLoader(Numbers(12), batch_size=2), 2)
    assert [ids(prepare(rest, 2, rank)) for rank in range(2)] == [[[4, 5], [8, 9]], [[6, 7], [10, 11]]]


def test_a_batch_that_cannot_be_split_is_refused() -> None:
    with pytest.raises(PrepareError, match="batch_size=3 cannot be cut into 2 equal parts"):
        prepare(DataLoader(Numbers(8), batch_size=3), 2, 0, split_batches=True)
    with pytest.raises(PrepareError, match="this loader makes none"):
        prepare(DataLoader(Numbers(8), batch_size=None), 2, 0, split_batches=True)


def test_the_original_loader_stays_as_it_was() -> None:
    plain = DataLoader(Numbers(8), batch_size=2, shuffle=True)
    before = dict(plain.__dict__)
    prepare(plain, 2, 0)
    assert plain.__dict__ == before and len(plain) == 4


def test_the_shuffle_follows_a_seed_by_default() -> None:
    torch.manual_seed(5)
    first = prepare(DataLoader(Numbers(30), batch_size=5, shuffle=True))
    torch.rand(7)
    second = prepare(DataLoader(Numbers(30), batch_size=5, shuffle=True))
    assert isinstance(first.get_sampler(), SeedableRandomSampler)
    assert flat(first) == flat(second), "whatever was drawn before"
    torch.manual_seed(60)
    assert flat(prepare(DataLoader(Numbers(30), batch_size=5, shuffle=True))) != flat(first)


def test_the_order_does_not_depend_on_the_number_of_ranks() -> None:
    whole = flat(prepare(DataLoader(Numbers(24), batch_size=4, shuffle=True), data_seed=3))
    for ranks in (2, 3):
        plain = DataLoader(Numbers(24), batch_size=4, shuffle=True)
        parts = [prepare(plain, ranks, rank, data_seed=3) for rank in range(ranks)]
        assert [number for step in zip(*parts, strict=True) for batch in step for number in batch.tolist()] == whole


def test_which_seed_is_taken() -> None:
    def seed(loader: DataLoader, **how: Any) -> int:
        return prepare(loader, **how).state_dict()["seed"]

    torch.manual_seed(11)
    generator = torch.Generator().manual_seed(7)
    assert seed(DataLoader(Numbers(4), shuffle=True)) == 11
    assert seed(DataLoader(Numbers(4), shuffle=True, generator=generator)) == 7
    assert seed(DataLoader(Numbers(4), shuffle=True, generator=generator), data_seed=9) == 9
    assert seed(DataLoader(Numbers(4), sampler=SeedableRandomSampler(range(4), data_seed=2)), data_seed=9) == 2
    torch.manual_seed(-1)
    assert json.loads(json.dumps(seed(DataLoader(Numbers(4), shuffle=True)))) < 1 << 63


def test_two_shuffles_over_as_many_samples_do_not_pair_them_up() -> None:
    first = prepare(DataLoader(Numbers(40), batch_size=4, shuffle=True), data_seed=1)
    in_order = prepare(DataLoader(Numbers(40), batch_size=4), data_seed=1)
    second = prepare(DataLoader(Numbers(40), batch_size=4, shuffle=True), data_seed=1, siblings=[first, in_order])
    assert flat(first) != flat(second)
    assert prepare(DataLoader(Numbers(40), shuffle=True), data_seed=1, siblings=[in_order]).state_dict()["seed"] == 1


def test_without_a_seed_the_order_is_plain_torchs() -> None:
    def plain() -> DataLoader:
        return DataLoader(Numbers(20), batch_size=4, shuffle=True)

    def own() -> DataLoader:
        return DataLoader(Numbers(20), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3))

    for make in (plain, own):
        torch.manual_seed(2)
        loader = make()
        wanted = [flat(loader), flat(loader), torch.rand(1)]
        torch.manual_seed(2)
        prepared = prepare(make(), use_seedable_sampler=False)
        assert isinstance(prepared.get_sampler(), DrawnRandomSampler)
        assert [flat(prepared), flat(prepared), torch.rand(1)] == wanted


def test_a_shuffle_inside_a_batch_sampler_of_the_users() -> None:
    class Pairs(BatchSampler):
        def __iter__(self) -> Any:
            order = list(self.sampler)
            return iter([order[i : i + 2] for i in range(0, len(order), 2)])

    def loader(rank: int, **how: Any) -> Any:
        inner = DataLoader(Numbers(12), shuffle=True).sampler
        return prepare(DataLoader(Numbers(12), batch_sampler=Pairs(inner, 2, False)), 2, rank, **how)

    loaders = [loader(0, data_seed=1), loader(1, data_seed=1)]
    seen = [flat(each) for each in loaders]
    assert sorted(seen[0] + seen[1]) == list(range(12)) != seen[0] + seen[1]
    assert isinstance(loaders[0].batch_sampler.batch_sampler, Pairs)


def test_options_that_belong_elsewhere_are_named() -> None:
    with pytest.raises(MisplacedArgumentError, match=r"even_batches=True.*DataLoaderConfiguration\(even_batches=…\)"):
        DataLoaderShard(Numbers(4), even_batches=True)
    with pytest.raises(TypeError, match=r"batch_sise=4.*Did you mean batch_size=\?"):
        DataLoaderDispatcher(Numbers(4), batch_sise=4)
    with pytest.raises(TypeError, match="It takes: dataset, batch_size"):
        DataLoaderShard(Numbers(4), zzz=4)


def test_the_public_function_takes_this_process_where_nothing_is_said(fresh_state: None) -> None:
    PartialState(cpu=True)
    loader = prepare_data_loader(DataLoader(Numbers(6), batch_size=2))
    assert ids(loader) == [[0, 1], [2, 3], [4, 5]] and loader.device is None
    placed = prepare_data_loader(DataLoader(Numbers(6), batch_size=2), device=torch.device("meta"), put_on_device=True)
    assert next(iter(placed)).is_meta


def test_the_public_function_for_one_of_several_processes() -> None:
    parts = [
        prepare_data_loader(DataLoader(Numbers(6), batch_size=2), CPU, num_processes=2, process_index=rank)
        for rank in range(2)
    ]
    assert [ids(part) for part in parts] == [[[0, 1], [4, 5]], [[2, 3], [0, 1]]]
    assert isinstance(parts[0].batch_sampler, BatchSamplerShard)
    assert isinstance(parts[0].get_sampler(), SequentialSampler)


class Mesh:
    """Four axes, this rank at a place in each."""

    mesh_dim_names = ("dp_replicate", "dp_shard", "cp", "tp")

    def size(self, axis: int) -> int:
        return (2, 3, 2, 4)[axis]

    def get_local_rank(self, name: str) -> int:
        return {"dp_replicate": 1, "dp_shard": 2, "cp": 1, "tp": 3}[name]


def test_ranks_that_share_a_model_see_the_same_data() -> None:
    part = _part_of_mesh(Mesh())
    assert part is not None and (part.count, part.index) == (6, 5)
    assert _part_of_mesh(None) is None


CONTRACT = {
    "BatchSamplerShard": "(batch_sampler, num_processes=1, process_index=0, split_batches=False, even_batches=True)",
    "DataLoaderAdapter": "(dataset, use_stateful_dataloader=False, batch_sampler=None, **kwargs)",
    "DataLoaderDispatcher": "(dataset, split_batches=False, skip_batches=0, use_stateful_dataloader=False, "
    "_drop_last=False, _non_blocking=False, slice_fn=None, torch_device_mesh=None, iteration=0, **kwargs)",
    "DataLoaderShard": "(dataset, device=None, rng_types=None, synchronized_generator=None, skip_batches=0, "
    "use_stateful_dataloader=False, _drop_last=False, _non_blocking=False, torch_device_mesh=None, iteration=0, "
    "**kwargs)",
    "IterableDatasetShard": "(dataset, batch_size=1, drop_last=False, num_processes=1, process_index=0, "
    "split_batches=False)",
    "SeedableRandomSampler": "(*args, **kwargs)",
    "SkipBatchSampler": "(batch_sampler, skip_batches=0)",
    "SkipDataLoader": "(dataset, skip_batches=0, use_stateful_dataloader=False, **kwargs)",
    "get_sampler": "(dataloader)",
    "prepare_data_loader": "(dataloader, device=None, num_processes=None, process_index=None, split_batches=False, "
    "put_on_device=False, rng_types=None, dispatch_batches=None, even_batches=True, slice_fn_for_dispatch=None, "
    "use_seedable_sampler=False, data_seed=None, non_blocking=False, use_stateful_dataloader=False, "
    "torch_device_mesh=None)",
    "skip_first_batches": "(dataloader, num_batches=0)",
}


@pytest.mark.parametrize("name", CONTRACT)
def test_public_names_are_called_as_promised(name: str) -> None:
    value = getattr(public, name)
    target = value.__init__ if inspect.isclass(value) else value
    parameters = [p for p in inspect.signature(target).parameters.values() if p.name != "self"]
    words = [str(p.replace(annotation=inspect.Parameter.empty)) for p in parameters]
    assert f"({', '.join(words)})" == CONTRACT[name]


def test_the_public_path_only_imports() -> None:
    text = Path(public.__file__).read_text()
    assert "def " not in text and "class " not in text
    assert {*CONTRACT, "DataLoaderStateMixin"} <= set(public.__all__)
