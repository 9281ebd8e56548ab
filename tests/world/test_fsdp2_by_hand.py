"""The pieces of version 2 that other libraries call one by one."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from accelerate import Accelerator
from accelerate.strategies.sharded.activation import is_checkpointed
from accelerate.test_utils.world import RanksFailedError, run_world
from accelerate.utils import (
    fsdp2_apply_ac,
    fsdp2_load_full_state_dict,
    fsdp2_prepare_model,
    get_fsdp2_grad_scaler,
)
from accelerate.utils.fsdp_utils import _get_model_state_dict, _prepare_sd_options, _set_model_state_dict
from sharded_jobs import Job, accelerator, assert_same, fresh, plain, plugin, train


@pytest.fixture(autouse=True)
def nothing_published() -> Iterator[None]:
    """Ranks that are threads write into the one environment."""
    yield
    for name in ("ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING"):
        os.environ.pop(name, None)


def test_a_model_prepared_by_the_function_trains() -> None:
    def rank_main(rank: int, n: int) -> Any:
        acc = accelerator(job, plugin())
        model = fsdp2_prepare_model(acc, copy.deepcopy(job.model))
        assert fsdp2_prepare_model(acc, model) is model
        optimizer = acc.prepare(job.optimizer(model.parameters()))
        return train(acc, job, acc.prepare(model), optimizer)

    job = Job(fresh(), steps=5)
    for result in run_world(rank_main, 2):
        assert_same(result, plain(job))


def test_another_strategy_cannot_prepare_so() -> None:
    with pytest.raises(RanksFailedError, match="whose strategy is 'ddp'"):
        run_world(lambda rank, n: fsdp2_prepare_model(Accelerator(), torch.nn.Linear(1, 1)), 2)


@pytest.mark.parametrize("meta", [True, False])
def test_a_whole_state_of_the_first_rank_fills_all(meta: bool) -> None:
    def rank_main(rank: int, n: int) -> dict[str, torch.Tensor]:
        acc = accelerator(Job(base), plugin())
        model = copy.deepcopy(other)
        if meta:
            for parameter in list(model.parameters()):
                parameter.requires_grad_(parameter.requires_grad)
            model = model.to("meta")
            for name, buffer in list(model.named_buffers()):
                model._buffers[name] = torch.zeros_like(buffer, device="cpu")
        mesh = init_device_mesh("cpu", (n,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        fsdp2_load_full_state_dict(acc, model, base.state_dict() if rank == 0 else {})
        model(torch.zeros(1, 2, dtype=torch.int64))
        return {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in model.state_dict().items()}

    base, other = fresh(1), fresh(2)
    base.shift.fill_(3.0)
    for found in run_world(rank_main, 2):
        assert all(torch.equal(found[name], tensor) for name, tensor in base.state_dict().items())


def test_a_state_that_lacks_a_tensor_is_an_error_on_every_rank() -> None:
    def rank_main(rank: int, n: int) -> str:
        acc = accelerator(Job(base), plugin())
        model = acc.prepare(copy.deepcopy(base))
        state = {name: t for name, t in base.state_dict().items() if name != "head.weight"}
        with pytest.raises(ValueError, match="head.weight") as error:
            fsdp2_load_full_state_dict(acc, model, state if rank == 0 else {})
        return type(error.value).__name__

    base = fresh()
    assert run_world(rank_main, 2) == ["PrepareError"] * 2


def test_activation_checkpointing_alone() -> None:
    def rank_main(rank: int, n: int) -> list[str]:
        acc = accelerator(Job(base), plugin())
        model = fsdp2_apply_ac(acc, copy.deepcopy(base))
        return [name for name, module in model.named_modules() if is_checkpointed(module)]

    base = fresh()
    assert run_world(rank_main, 2)[0] == ["blocks.0", "blocks.1"]


def test_the_scaler_is_for_the_jobs_device() -> None:
    def rank_main(rank: int, n: int) -> tuple[str, float]:
        Accelerator()
        scaler = get_fsdp2_grad_scaler(init_scale=4.0)
        return scaler._device, scaler.get_scale()

    assert run_world(rank_main, 2) == [("cpu", 4.0)] * 2


@pytest.mark.parametrize("kind", ["FULL_STATE_DICT", "SHARDED_STATE_DICT"])
def test_state_dictionaries(kind: str) -> None:
    def rank_main(rank: int, n: int) -> tuple[set[str], bool]:
        fsdp_plugin = plugin(state_dict_type=kind)
        acc = accelerator(Job(base), fsdp_plugin)
        model, other = acc.prepare(copy.deepcopy(base)), acc.prepare(copy.deepcopy(different))
        options = _prepare_sd_options(fsdp_plugin)
        state = _get_model_state_dict(model, sd_options=options)
        kinds = {type(value).__name__ for value in state.values()}
        whole = base.state_dict() if kind == "FULL_STATE_DICT" else state
        _set_model_state_dict(other, whole, sd_options=options)
        same = all(
            torch.equal(a.full_tensor(), b.full_tensor())
            for a, b in zip(model.parameters(), other.parameters(), strict=True)
        )
        return kinds, same

    base, different = fresh(1), fresh(2)
    results = run_world(rank_main, 2)
    assert all(same for _, same in results)
    if kind == "FULL_STATE_DICT":
        assert [kinds for kinds, _ in results] == [{"Tensor"}, set()]
    else:
        assert all("DTensor" in kinds for kinds, _ in results)


def test_units_are_fsdp_modules() -> None:
    def rank_main(rank: int, n: int) -> list[str]:
        acc = accelerator(Job(base), plugin())
        model = acc.prepare(copy.deepcopy(base))
        return [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]

    base = fresh()
    assert run_world(rank_main, 2)[0] == ["", "blocks.0", "blocks.1"]


def test_a_function_in_the_place_of_ours_divides_and_the_optimizer_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    import accelerate.accelerator

    called: list[int] = []

    def theirs(acc: Any, model: Any) -> Any:
        called.append(acc.process_index)
        mesh = init_device_mesh("cpu", (acc.num_processes,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    def rank_main(rank: int, n: int) -> Any:
        acc = accelerator(job, plugin())
        model = copy.deepcopy(job.model)
        model, optimizer = acc.prepare(model, job.optimizer(model.parameters()))
        return train(acc, job, model, optimizer)

    monkeypatch.setattr(accelerate.accelerator, "fsdp2_prepare_model", theirs)
    job = Job(fresh(), steps=4, accumulate=2, clip=0.5)
    for result in run_world(rank_main, 2):
        assert_same(result, plain(job))
    assert sorted(called) == [0, 1]
