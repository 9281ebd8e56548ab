"""FSDP version 1 against plain PyTorch in one process, 20 steps, float32, on gloo."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from accelerate import ParallelismConfig
from accelerate.test_utils.world import RanksFailedError, run_world
from sharded_jobs import (
    Job,
    Net,
    Result,
    accelerator,
    assert_same,
    fresh,
    plain,
    plugin,
    prepare_after,
    prepare_late,
    prepare_together,
    run,
    train,
)


def check(job: Job, n: int, *args: Any, tolerance: float = 1e-6, **kwargs: Any) -> list[Result]:
    results = run_world(run(job, *args, **kwargs), n, how="fork")
    wanted = plain(job)
    assert results[0].weights, "the first rank gets the whole state"
    for result in results:
        assert_same(result, wanted, tolerance)
    return results


@pytest.mark.parametrize("keep", [True, False], ids=["orig", "flat"])
@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.filterwarnings("ignore:The `NO_SHARD`")
def test_equals_one_process(strategy: str, keep: bool, n: int) -> None:
    job = Job(fresh())
    total = sum(p.numel() for p in job.model.parameters())
    for result in check(job, n, lambda: plugin(1, sharding_strategy=strategy, use_orig_params=keep)):
        assert result.extra["type"] == "FSDP"
        if strategy == "FULL_SHARD":
            assert result.extra["held"] <= total / n * 1.1, "each rank holds its part"


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"auto_wrap_policy": "NO_WRAP"}, id="one-unit"),
        pytest.param({"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 200}, id="by-size"),
        pytest.param({"activation_checkpointing": True}, id="checkpointing"),
        pytest.param({"forward_prefetch": True, "backward_prefetch": "BACKWARD_PRE"}, id="prefetch"),
        pytest.param({"backward_prefetch": "BACKWARD_POST", "limit_all_gathers": False}, id="prefetch-post"),
        pytest.param({"ignored_modules": r"blocks\.\d\.norm"}, id="ignored"),
        pytest.param({"sync_module_states": True}, id="sync"),
    ],
)
def test_settings(settings: dict[str, Any]) -> None:
    check(Job(fresh(), clip=0.3), 2, lambda: plugin(1, **settings))


@pytest.mark.parametrize("keep", [True, False], ids=["orig", "flat"])
@pytest.mark.parametrize("norm_type", [2.0, float("inf")])
def test_clips_by_the_norm_of_the_whole_model(norm_type: float, keep: bool) -> None:
    job = Job(fresh(scalar=True), clip=0.05, norm_type=norm_type, steps=6)
    check(job, 2, lambda: plugin(1, use_orig_params=keep))


@pytest.mark.parametrize("sync_each_batch", [False, True])
def test_accumulates(sync_each_batch: bool) -> None:
    job = Job(fresh(scalar=True), accumulate=3, clip=0.5, steps=6, sync_each_batch=sync_each_batch)
    check(job, 2, lambda: plugin(1))


@pytest.mark.parametrize("keep", [True, False], ids=["orig", "flat"])
@pytest.mark.parametrize("prepare", [prepare_after, prepare_late], ids=["after", "late"])
def test_an_optimizer_is_prepared_later(prepare: Any, keep: bool) -> None:
    check(Job(fresh()), 2, lambda: plugin(1, use_orig_params=keep), prepare)


def test_one_rank_loads_and_all_train() -> None:
    def build(rank: int) -> torch.nn.Module:
        return copy.deepcopy(job.model) if rank == 0 else copy.deepcopy(job.model).to("meta")

    job = Job(fresh(tied=True))
    for keep in (True, False):
        check(job, 2, lambda keep=keep: plugin(1, cpu_ram_efficient_loading=True, use_orig_params=keep), build=build)


def test_ranks_that_differ_take_the_first_ranks_weights() -> None:
    def build(rank: int) -> torch.nn.Module:
        return fresh(rank)

    check(Job(fresh(0)), 2, lambda: plugin(1, sync_module_states=True), build=build)


def test_a_model_on_the_meta_device_is_made_as_its_constructor_would() -> None:
    torch.manual_seed(5)
    job = Job(torch.nn.Sequential(torch.nn.Embedding(11, 8), torch.nn.Linear(8, 16), torch.nn.Linear(16, 11)))
    with torch.device("meta"):
        empty = torch.nn.Sequential(torch.nn.Embedding(11, 8), torch.nn.Linear(8, 16), torch.nn.Linear(16, 11))

    def build(rank: int) -> torch.nn.Module:
        torch.manual_seed(5 + rank)
        return copy.deepcopy(empty)

    settings = {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 100}
    check(job, 2, lambda: plugin(1, **settings), build=build)


def test_an_optimizer_that_has_stepped_keeps_its_state() -> None:
    job = Job(fresh(), steps=10)

    def begun() -> tuple[Any, Any]:
        model = copy.deepcopy(job.model)
        optimizer = job.optimizer(model.parameters())
        for step in job.batches()[:5]:
            tokens = step[0]
            logits = model(tokens[:, :-1]).flatten(0, 1)
            torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, optimizer

    def rank_main(rank: int, n: int) -> list[Result]:
        found = []
        for keep in (True, False):
            acc = accelerator(job, plugin(1, use_orig_params=keep))
            model, optimizer = begun()
            half = Job(model, steps=10, optimizer=lambda _, optimizer=optimizer: optimizer)
            half.batches = lambda: job.batches()[5:]  # type: ignore[method-assign]
            model, optimizer = prepare_together(acc, half, model)
            found.append(train(acc, half, model, optimizer))
            acc.state._reset_state()
        return found

    wanted = plain(job)
    wanted.losses = wanted.losses[5:]
    for found in run_world(rank_main, 2, how="fork"):
        for result in found:
            assert_same(result, wanted)


def test_a_stepped_optimizer_cannot_be_divided_after_its_model() -> None:
    def rank_main(rank: int, n: int) -> None:
        job = Job(fresh(), steps=1)
        model = job.model
        optimizer = job.optimizer(model.parameters())
        model(torch.zeros(1, 2, dtype=torch.int64)).sum().backward()
        optimizer.step()
        acc = accelerator(job, plugin(1))
        acc.prepare(model)
        acc.prepare(optimizer)

    with pytest.raises(RanksFailedError, match="Call prepare\\(model, optimizer\\) in one call"):
        run_world(rank_main, 2, how="fork")


def test_flat_parameters_refuse_groups_that_they_cannot_keep() -> None:
    def by_kind(parameters: Any) -> torch.optim.Optimizer:
        parameters = list(parameters)
        matrices, rest = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim < 2]
        return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": rest}], lr=1e-2)

    job = Job(fresh(), optimizer=by_kind, steps=4)
    with pytest.raises(RanksFailedError, match="parameter groups; .* step parameters of one flat parameter"):
        run_world(run(job, lambda: plugin(1, use_orig_params=False)), 2, how="fork")
    check(job, 2, lambda: plugin(1, use_orig_params=True))


def test_flat_parameters_refuse_an_optimizer_of_a_part() -> None:
    def matrices(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for p in parameters if p.ndim > 1], lr=0.1)

    job = Job(fresh(), optimizer=matrices, steps=1)
    with pytest.raises(RanksFailedError, match="it would step all of them"):
        run_world(run(job, lambda: plugin(1, use_orig_params=False)), 2, how="fork")


@pytest.mark.parametrize("mode", ["bf16", "fp16"])
def test_mixed_precision_stays_close_and_keeps_float32_masters(mode: str) -> None:
    def rank_main(rank: int, n: int) -> tuple[Result, Any]:
        acc = accelerator(job, plugin(1), mixed_precision=mode)
        model, optimizer = prepare_together(acc, job, copy.deepcopy(job.model))
        result = train(acc, job, model, optimizer)
        return result, ({p.dtype for p in model.parameters()}, model(torch.zeros(1, 2, dtype=torch.int64)).dtype)

    job = Job(fresh())
    for result, (masters, outputs) in run_world(rank_main, 2, how="fork"):
        assert_same(result, plain(job), 1e-2)
        assert masters == {torch.float32}
        assert outputs == torch.float32


def test_the_versions_compute_the_same_in_16_bits() -> None:
    job = Job(fresh())
    both = [
        run_world(run(job, lambda v=version: plugin(v), mixed_precision="bf16"), 2, how="fork")[0].losses
        for version in (1, 2)
    ]
    assert both[0] == pytest.approx(both[1], rel=1e-6)


def test_fp16_ranks_skip_a_step_together() -> None:
    def rank_main(rank: int, n: int) -> list[bool]:
        from accelerate.utils import GradScalerKwargs

        job = Job(fresh())
        acc = accelerator(job, plugin(1), mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs(init_scale=8.0)])
        model, optimizer = prepare_together(acc, job, job.model)
        skipped = []
        for step in range(3):
            loss = model(torch.zeros(1, 2, dtype=torch.int64)).sum()
            acc.backward(loss * (float("inf") if step == 1 and rank == 1 else 1.0))
            optimizer.step()
            optimizer.zero_grad()
            skipped.append(acc.optimizer_step_was_skipped)
        return skipped

    assert run_world(rank_main, 2, how="fork") == [[False, True, False]] * 2


def test_copies_of_a_sharded_model() -> None:
    job = Job(fresh(), clip=0.5, steps=8)
    total = sum(p.numel() for p in job.model.parameters())

    def rank_main(rank: int, n: int) -> tuple[Result, int]:
        config = ParallelismConfig(dp_replicate_size=2, dp_shard_size=2)
        acc = accelerator(job, plugin(1), parallelism_config=config)
        model, optimizer = prepare_together(acc, job, copy.deepcopy(job.model))
        return train(acc, job, model, optimizer), sum(p.numel() for p in model.parameters())

    for result, held in run_world(rank_main, 4, how="fork"):
        assert_same(result, plain(job))
        assert held <= total / 2 * 1.1


@pytest.mark.parametrize("strategy", ["HYBRID_SHARD", "HYBRID_SHARD_ZERO2"])
def test_hybrid_shards_within_a_machine(strategy: str) -> None:
    job = Job(fresh(), steps=6)
    total = sum(p.numel() for p in job.model.parameters())
    results = run_world(run(job, lambda: plugin(1, sharding_strategy=strategy)), 4, how="fork", num_nodes=2)
    for result in results:
        assert_same(result, plain(job))
        assert result.extra["held"] >= total / 2 * 0.9


def test_offload_needs_an_accelerator_and_says_which_version_does_not() -> None:
    with pytest.raises(RanksFailedError, match="Use fsdp_version=2"):
        run_world(run(Job(fresh(), steps=1), lambda: plugin(1, cpu_offload=True)), 2, how="fork")


def test_frozen_and_trained_parameters_in_one_flat_parameter() -> None:
    job = Job(fresh(), steps=4)
    job.model.embed.requires_grad_(False)
    job.model.blocks[0].up.requires_grad_(False)
    for keep in (True, False):
        check(job, 2, lambda keep=keep: plugin(1, use_orig_params=keep))


def test_what_one_flat_parameter_cannot_hold_is_an_error() -> None:
    job = Job(fresh(), steps=1)
    job.model.blocks[0].up.bias.requires_grad_(False)
    with pytest.raises(RanksFailedError, match="frozen and trained parameters that cannot be parted"):
        run_world(run(job, lambda: plugin(1, use_orig_params=False)), 2, how="fork")


def test_tied_weights_stay_tied() -> None:
    job = Job(fresh(tied=True))
    for keep in (True, False):
        for result in check(job, 2, lambda keep=keep: plugin(1, use_orig_params=keep)):
            if result.weights:
                assert torch.equal(result.weights["head.weight"], result.weights["embed.weight"])


def test_unwrapping_gives_the_users_model() -> None:
    def rank_main(rank: int, n: int) -> bool:
        bare = fresh()
        acc = accelerator(Job(bare), plugin(1))
        model = acc.prepare(bare)
        return acc.unwrap_model(model) is bare and isinstance(bare, Net) and acc.unwrap_model(bare) is bare

    assert all(run_world(rank_main, 2, how="fork"))


def test_one_process_needs_no_launcher() -> None:
    check(Job(fresh(), steps=4), 1, lambda: plugin(1))
