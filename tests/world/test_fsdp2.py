"""FSDP version 2 against plain PyTorch in one process, 20 steps, float32."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from accelerate import FullyShardedDataParallelPlugin, ParallelismConfig
from accelerate.errors import PrepareError
from accelerate.test_utils.world import RanksFailedError, run_world
from accelerate.utils import GradScalerKwargs
from sharded_jobs import (
    Block,
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

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view tensor")


@pytest.fixture(autouse=True)
def nothing_published() -> Iterator[None]:
    """Ranks that are threads write into the one environment; a process of its own would take it along."""
    yield
    for name in ("ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING"):
        os.environ.pop(name, None)


def check(job: Job, n: int, *args: Any, tolerance: float = 1e-6, **kwargs: Any) -> list[Result]:
    results = run_world(run(job, *args, **kwargs), n)
    wanted = plain(job)
    assert results[0].weights, "the first rank gets the whole state"
    for result in results:
        assert_same(result, wanted, tolerance)
    return results


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="reshard"),
        pytest.param({"reshard_after_forward": False}, id="keep"),
        pytest.param({"auto_wrap_policy": "NO_WRAP"}, id="one-unit"),
        pytest.param({"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 200}, id="by-size"),
        pytest.param({"cpu_offload": True}, id="offload"),
        pytest.param({"activation_checkpointing": True}, id="checkpointing"),
        pytest.param(
            {"activation_checkpointing": True, "activation_checkpointing_offload": True}, id="checkpointing-offload"
        ),
        pytest.param({"forward_prefetch": True}, id="prefetch"),
    ],
)
def test_equals_one_process(settings: dict[str, Any], n: int) -> None:
    job = Job(fresh())
    total = sum(p.numel() for p in job.model.parameters())
    for result in check(job, n, lambda: plugin(**settings)):
        assert result.extra["type"] == "FSDP"
        assert result.extra["held"] <= total / n * 1.2, "each rank holds about its part"


def test_reshards_over_smaller_groups() -> None:
    check(Job(fresh()), 4, lambda: plugin(reshard_after_forward=2))


@pytest.mark.parametrize("clip", [0.05, 100.0])
@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
def test_clips_by_the_norm_of_the_whole_model(clip: float, norm_type: float) -> None:
    check(Job(fresh(scalar=True), clip=clip, norm_type=norm_type, steps=6), 4, plugin)


@pytest.mark.parametrize("sync_each_batch", [False, True])
def test_accumulates(sync_each_batch: bool) -> None:
    check(Job(fresh(scalar=True), accumulate=3, clip=0.5, steps=8, sync_each_batch=sync_each_batch), 2, plugin)


def test_reduces_once_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as groups

    calls: list[int] = []
    original = groups.foreach_reduce

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(groups, "foreach_reduce", counted)
    counts = []
    for sync_each_batch in (False, True):
        calls.clear()
        run_world(run(Job(fresh(), accumulate=4, steps=2, sync_each_batch=sync_each_batch), plugin), 2)
        counts.append(len(calls))
    units, ranks, steps = 3, 2, 2
    assert counts == [units * ranks * steps, 4 * units * ranks * steps]


@pytest.mark.parametrize("prepare", [prepare_after, prepare_late], ids=["after", "late"])
def test_an_optimizer_is_prepared_later(prepare: Any) -> None:
    check(Job(fresh(), clip=0.5), 2, plugin, prepare)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), id="sgd"),
        pytest.param(lambda p: torch.optim.Adagrad(p, lr=0.05), id="adagrad"),
        pytest.param(lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True), id="foreach"),
        pytest.param(lambda p: torch.optim.RMSprop(p, lr=1e-3), id="rmsprop"),
        pytest.param(lambda p: torch.optim.NAdam(p, lr=1e-3), id="nadam"),
    ],
)
def test_any_optimizer(make: Any) -> None:
    check(Job(fresh(), optimizer=make, steps=10), 2, plugin)


@pytest.mark.parametrize("prepare", [prepare_together, prepare_late], ids=["together", "late"])
def test_an_optimizer_that_has_stepped_keeps_its_state(prepare: Any) -> None:
    """Five steps alone, then the rest sharded, equal all steps alone."""

    def begun(job: Job) -> tuple[Any, Any]:
        model = copy.deepcopy(job.model)
        optimizer = job.optimizer(model.parameters())
        for step in job.batches()[:5]:
            torch.nn.functional.cross_entropy(model(step[0][:, :-1]).flatten(0, 1), step[0][:, 1:].flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, optimizer

    job = Job(fresh(), steps=10)

    def rank_main(rank: int, n: int) -> Result:
        acc = accelerator(job, plugin())
        model, optimizer = begun(job)
        half = Job(model, steps=10, optimizer=lambda _: optimizer)
        half.batches = lambda: job.batches()[5:]  # type: ignore[method-assign]
        model, optimizer = prepare(acc, half, model)
        return train(acc, half, model, optimizer)

    wanted = plain(job)
    wanted.losses = wanted.losses[5:]
    assert_same(run_world(rank_main, 2)[0], wanted)


def test_tied_weights_stay_tied() -> None:
    job = Job(fresh(tied=True))
    for settings in ({}, {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 100}):
        for result in check(job, 2, lambda settings=settings: plugin(**settings)):
            if result.weights:
                assert torch.equal(result.weights["head.weight"], result.weights["embed.weight"])


def test_scalars_are_trained_whole() -> None:
    results = check(Job(fresh(scalar=True)), 2, plugin)
    assert results[0].weights["scale"] != 1.0


@pytest.mark.parametrize("how", ["pattern", "modules"])
def test_ignored_modules_are_trained_whole(how: str) -> None:
    job = Job(fresh(), clip=0.3)

    def rank_main(rank: int, n: int) -> tuple[Result, list[bool]]:
        model = copy.deepcopy(job.model)
        ignored = r"blocks\.\d+\.norm|head" if how == "pattern" else [model.head, model.blocks[0].norm]
        acc = accelerator(job, plugin(ignored_modules=ignored))
        model, optimizer = prepare_together(acc, job, model)
        result = train(acc, job, model, optimizer)
        return result, [isinstance(p, DTensor) for p in (model.head.weight, model.blocks[0].norm.bias)]

    for result, divided in run_world(rank_main, 2):
        assert_same(result, plain(job))
        assert divided == [False, False]


def test_ignored_modules_that_differ_are_each_ranks_own() -> None:
    """Experts: every rank trains its own, and the rest of the model is trained together."""

    def rank_main(rank: int, n: int) -> tuple[float, float, bool]:
        model = copy.deepcopy(base)
        with torch.no_grad():
            model.head.weight.add_(rank * 0.5)
        acc = accelerator(Job(model), plugin(ignored_modules="head"))
        model, optimizer = prepare_together(acc, Job(model), model)
        before = model.head.weight.detach().clone()
        train(acc, Job(model, steps=2), model, optimizer)
        moved = not torch.equal(before, model.head.weight)
        return float(model.head.weight.detach().sum()), float(model.embed.weight.full_tensor().detach().sum()), moved

    base = fresh()
    (own_0, shared_0, moved_0), (own_1, shared_1, moved_1) = run_world(rank_main, 2)
    assert moved_0
    assert moved_1
    assert abs(own_0 - own_1) > 1.0
    assert shared_0 == shared_1


def test_an_ignored_pattern_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(RanksFailedError, match="matches no module of Net"):
        run_world(run(Job(fresh(), steps=1), lambda: plugin(ignored_modules="lm_head")), 2)


def test_a_policy_of_the_users_own() -> None:
    def blocks_only(module: Any, recurse: bool, nonwrapped_numel: int) -> bool:
        return recurse or isinstance(module, Block)

    def rank_main(rank: int, n: int) -> list[str]:
        job = Job(copy.deepcopy(base), steps=1)
        acc = accelerator(job, FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy=blocks_only))
        model, _ = prepare_together(acc, job, job.model)
        return [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]

    base = fresh()
    assert run_world(rank_main, 2)[0] == ["", "blocks.0", "blocks.1"]


def test_without_units_the_model_is_one() -> None:
    """The plain model of the documentation: a policy by layer class on a model that names none."""

    def rank_main(rank: int, n: int) -> tuple[int, list[str]]:
        model = copy.deepcopy(base)
        settings = {"sharding_strategy": "FULL_SHARD", "auto_wrap_policy": "TRANSFORMER_AUTO_WRAP"}
        acc = accelerator(Job(model), FullyShardedDataParallelPlugin(fsdp_version=2, cpu_offload=False, **settings))
        model = acc.prepare(model)
        held = sum(p.to_local().numel() for p in model.parameters())
        return held, [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]

    base = torch.nn.Sequential(torch.nn.Linear(10, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    total = sum(p.numel() for p in base.parameters())
    held, names = run_world(rank_main, 2)[0]
    assert names == [""]
    assert held <= total * 0.55


# First weights


def test_one_rank_loads_and_all_train() -> None:
    def build(rank: int) -> torch.nn.Module:
        return copy.deepcopy(job.model) if rank == 0 else copy.deepcopy(job.model).to("meta")

    job = Job(fresh(tied=True, scalar=True))
    for n in (2, 4):
        check(job, n, lambda: plugin(cpu_ram_efficient_loading=True), build=build)


def test_what_other_ranks_hold_is_not_used_where_one_loads() -> None:
    def build(rank: int) -> torch.nn.Module:
        model = copy.deepcopy(job.model)
        if rank:
            with torch.no_grad():
                for tensor in (*model.parameters(), *model.buffers()):
                    tensor.fill_(float("nan"))
        return model

    job = Job(fresh())
    check(job, 2, lambda: plugin(cpu_ram_efficient_loading=True), build=build)


def test_ranks_that_differ_take_the_first_ranks_weights_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    def build(rank: int) -> torch.nn.Module:
        model = copy.deepcopy(job.model)
        if rank:
            with torch.no_grad():
                model.blocks[1].up.weight.add_(0.1)
        return model

    job = Job(fresh())
    check(job, 2, plugin, build=build)
    assert "blocks.1.up.weight" in caplog.text
    assert "set_seed()" in caplog.text


def test_a_module_that_cannot_make_its_weights_is_named() -> None:
    with torch.device("meta"):
        empty = Net()
    with pytest.raises(RanksFailedError, match=r"the model itself \(Net\) cannot make its own weights"):
        run_world(run(Job(fresh(), steps=1), plugin, build=lambda rank: copy.deepcopy(empty)), 2)


def test_weights_that_are_left_unset_are_named() -> None:
    class Forgetful(torch.nn.Linear):
        def reset_parameters(self) -> None:
            torch.nn.init.zeros_(self.weight)

    with torch.device("meta"):
        empty = torch.nn.Sequential(Forgetful(4, 4))
    with pytest.raises(RanksFailedError, match=r"0 \(Forgetful\) did not set its bias"):
        run_world(lambda rank, n: accelerator(Job(empty), plugin()).prepare(copy.deepcopy(empty)), 2)


def test_weights_are_on_another_rank_than_the_first() -> None:
    def build(rank: int) -> torch.nn.Module:
        return copy.deepcopy(base) if rank else copy.deepcopy(base).to("meta")

    base = fresh()
    with pytest.raises(RanksFailedError, match="is on the 'meta' device on the first rank"):
        run_world(run(Job(base, steps=1), plugin, build=build), 2)


def test_models_of_different_structure_are_an_error() -> None:
    def build(rank: int) -> torch.nn.Module:
        return copy.deepcopy(models[rank])

    models = [fresh(), fresh(blocks=3)]
    with pytest.raises(RanksFailedError, match="models of different structure"):
        run_world(run(Job(models[0], steps=1), plugin, build=build), 2)


# Precision


@pytest.mark.parametrize("mode", ["bf16", "fp16"])
def test_mixed_precision_stays_close_and_keeps_float32_masters(mode: str) -> None:
    def rank_main(rank: int, n: int) -> tuple[Result, Any]:
        acc = accelerator(job, plugin(), mixed_precision=mode)
        model, optimizer = prepare_together(acc, job, copy.deepcopy(job.model))
        result = train(acc, job, model, optimizer)
        state = optimizer.state[model.head.weight]["exp_avg"]
        return result, {
            "masters": {p.dtype for p in model.parameters()},
            "state": state.dtype,
            "outputs": model(torch.zeros(1, 2, dtype=torch.int64)).dtype,
        }

    job = Job(fresh())
    for result, found in run_world(rank_main, 2):
        assert_same(result, plain(job), 1e-2)
        assert found == {"masters": {torch.float32}, "state": torch.float32, "outputs": torch.float32}


def test_a_16_bit_model_is_raised_once_and_said(caplog: pytest.LogCaptureFixture) -> None:
    def rank_main(rank: int, n: int) -> tuple[set[torch.dtype], torch.dtype]:
        acc = accelerator(job, plugin(), mixed_precision="bf16")
        model, optimizer = prepare_together(acc, job, copy.deepcopy(job.model))
        train(acc, job, model, optimizer)
        return {p.dtype for p in model.parameters() if p.requires_grad}, model.embed.weight.dtype

    job = Job(fresh().bfloat16(), steps=2)
    job.model.embed.requires_grad_(False)
    for trained, frozen in run_world(rank_main, 2):
        assert trained == {torch.float32}
        assert frozen == torch.bfloat16, "nothing is added up in frozen weights"
    assert caplog.text.count("float32 master weights") == 1


def test_without_mixed_precision_a_16_bit_model_stays_so() -> None:
    def rank_main(rank: int, n: int) -> set[torch.dtype]:
        acc = accelerator(Job(base), plugin(), mixed_precision="no")
        return {p.dtype for p in acc.prepare(copy.deepcopy(base)).parameters()}

    base = fresh().bfloat16()
    assert run_world(rank_main, 2)[0] == {torch.bfloat16}


def test_fp16_ranks_skip_a_step_together() -> None:
    def rank_main(rank: int, n: int) -> tuple[list[bool], bool]:
        job = Job(copy.deepcopy(base))
        scaler = GradScalerKwargs(init_scale=8.0)
        acc = accelerator(job, plugin(), mixed_precision="fp16", kwargs_handlers=[scaler])
        model, optimizer = prepare_together(acc, job, job.model)
        skipped = []
        for step in range(3):
            loss = model(torch.zeros(1, 2, dtype=torch.int64)).sum()
            # Only one rank overflows, and only in rows that it alone holds after the reduction.
            acc.backward(loss * (float("inf") if step == 1 and rank == 1 else 1.0))
            before = model.head.weight.to_local().detach().clone()
            optimizer.step()
            optimizer.zero_grad()
            skipped.append(acc.optimizer_step_was_skipped)
            if step == 1:
                kept = torch.equal(before, model.head.weight.to_local())
        return skipped, kept

    base = fresh()
    for skipped, kept in run_world(rank_main, 2):
        assert skipped == [False, True, False]
        assert kept


# Meshes


def test_copies_of_a_sharded_model() -> None:
    job = Job(fresh(), clip=0.5)
    total = sum(p.numel() for p in job.model.parameters())
    config = {"dp_replicate_size": 2, "dp_shard_size": 2}

    def rank_main(rank: int, n: int) -> tuple[Result, Any]:
        acc = accelerator(job, plugin(), parallelism_config=ParallelismConfig(**config))
        model, optimizer = prepare_together(acc, job, copy.deepcopy(job.model))
        result = train(acc, job, model, optimizer)
        placements = [str(p) for p in model.head.weight.placements]
        return result, (sum(p.to_local().numel() for p in model.parameters()), placements)

    for result, (held, placements) in run_world(rank_main, 4):
        assert_same(result, plain(job))
        assert held <= total / 2 * 1.2
        assert placements == ["R", "S(0)"]


def test_copies_begin_alike() -> None:
    """Replicas that began apart would stay apart: nothing averages parameters."""
    job = Job(fresh())
    config = {"dp_replicate_size": 2, "dp_shard_size": 2}

    def build(rank: int) -> torch.nn.Module:
        model = copy.deepcopy(job.model)
        with torch.no_grad():
            model.head.weight.add_(rank)
        return model

    def rank_main(rank: int, n: int) -> Result:
        acc = accelerator(job, plugin(), parallelism_config=ParallelismConfig(**config))
        model, optimizer = prepare_together(acc, job, build(rank))
        return train(acc, job, model, optimizer)

    for result in run_world(rank_main, 4):
        assert_same(result, plain(job))


def test_one_process_needs_no_launcher() -> None:
    check(Job(fresh(), steps=4), 1, plugin)


# Models


def test_two_models_and_their_optimizers_in_one_call() -> None:
    first, second = Job(fresh(1), steps=6), Job(fresh(2), steps=6)

    def rank_main(rank: int, n: int) -> tuple[Result, Result]:
        acc = accelerator(first, plugin())
        a, b = copy.deepcopy(first.model), copy.deepcopy(second.model)
        a, b, second_optimizer, first_optimizer = acc.prepare(
            a, b, second.optimizer(b.parameters()), first.optimizer(a.parameters())
        )
        return train(acc, first, a, first_optimizer), train(acc, second, b, second_optimizer)

    for found in run_world(rank_main, 2):
        assert_same(found[0], plain(first))
        assert_same(found[1], plain(second))


def test_one_optimizer_for_two_models() -> None:
    def rank_main(rank: int, n: int) -> list[bool]:
        a, b = copy.deepcopy(first), copy.deepcopy(second)
        acc = accelerator(Job(a), plugin())
        optimizer = torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.1)
        a, b, optimizer = acc.prepare(a, b, optimizer)
        mine = {id(p) for m in (a, b) for p in m.parameters()}
        return [id(p) in mine for group in optimizer.param_groups for p in group["params"]]

    first, second = fresh(1), fresh(2)
    for found in run_world(rank_main, 2):
        assert len(found) == 2 * len(list(first.parameters()))
        assert all(found)


def test_a_divided_model_is_not_divided_again() -> None:
    def rank_main(rank: int, n: int) -> bool:
        acc = accelerator(Job(base), plugin())
        model = acc.prepare(copy.deepcopy(base))
        return acc.prepare(model) is model

    base = fresh()
    assert all(run_world(rank_main, 2))


def test_a_model_that_the_user_divided_is_refused() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def rank_main(rank: int, n: int) -> None:
        model = copy.deepcopy(base)
        fully_shard(model, mesh=init_device_mesh("cpu", (n,)))
        accelerator(Job(base), plugin()).prepare(model)

    base = fresh()
    with pytest.raises(RanksFailedError, match="fully_shard was applied already"):
        run_world(rank_main, 2)


def test_a_model_for_evaluation_stays_whole_and_is_the_same_on_all_ranks() -> None:
    def rank_main(rank: int, n: int) -> tuple[bool, float]:
        model = copy.deepcopy(base)
        if rank:
            with torch.no_grad():
                model.head.weight.fill_(7.0)
        acc = accelerator(Job(base), plugin(cpu_ram_efficient_loading=True))
        model = acc.prepare_model(model, evaluation_mode=True)
        return isinstance(model, FSDPModule), float(model.head.weight.detach().sum())

    base = fresh()
    for divided, total in run_world(rank_main, 2):
        assert not divided
        assert total == float(base.head.weight.detach().sum())


def test_gradients_of_whole_parameters_are_looked_at_in_the_same_units() -> None:
    """`num_items`: the gradient is the mean over all items of all ranks, for divided and whole parameters."""
    counts = ((1, 4), (3, 2))

    def rank_main(rank: int, n: int) -> Result:
        acc = accelerator(Job(base, accumulate=2), plugin())
        model, optimizer = acc.prepare(copy.deepcopy(base), torch.optim.SGD([torch.zeros(1)], lr=1.0))
        for micro in range(2):
            with acc.accumulate(model):
                count = counts[micro][rank]
                loss = model(torch.full((count, 2), 3)).square().mean()
                acc.backward(loss, num_items=count)
        acc._settle_gradients()
        grads = {
            n: p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for n, p in model.named_parameters()
        }
        return Result(weights=grads)

    base = fresh(scalar=True)
    wanted = copy.deepcopy(base)
    wanted(torch.full((10, 2), 3)).square().mean().backward()
    for found in run_world(rank_main, 2):
        for name, parameter in wanted.named_parameters():
            assert torch.allclose(found.weights[name], parameter.grad, rtol=1e-5, atol=1e-7), name


def test_an_optimizer_over_nothing_sharded_is_left_alone() -> None:
    def rank_main(rank: int, n: int) -> bool:
        acc = accelerator(Job(base), plugin())
        loose = torch.nn.Parameter(torch.ones(3))
        optimizer = acc.prepare(torch.optim.SGD([loose], lr=0.1))
        return optimizer.param_groups[0]["params"][0] is loose

    base = fresh()
    assert all(run_world(rank_main, 2))


def test_version_1s_hybrid_word_says_what_can_be_done() -> None:
    with pytest.raises(ValueError, match="dp_replicate_size"):
        plugin(sharding_strategy="HYBRID_SHARD")


def test_a_mesh_without_shards_is_an_error() -> None:
    def rank_main(rank: int, n: int) -> None:
        accelerator(Job(base), plugin(), parallelism_config=ParallelismConfig(dp_replicate_size=2))

    base = fresh()
    with pytest.raises(RanksFailedError, match="nothing to shard over"):
        run_world(rank_main, 2)


def test_errors_are_the_librarys_own() -> None:
    assert issubclass(PrepareError, ValueError)
