"""What every strategy must do, whatever it is: the suite that an implementation lands by passing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from accelerate.checkpoint.naming import canonical_parameters
from accelerate.test_utils.world import run_world
from conformance.strategies.jobs import Job, Net, Result, assert_same, make_accelerator, plain, through
from deepspeed_jobs import warm


@dataclass(frozen=True)
class Case:
    """A strategy, how it is asked for (inside the rank), and where it runs."""

    name: str
    ranks: int
    kind: str
    kwargs: Callable[[], dict[str, Any]] = dict
    how: str = "fork"
    before: Callable[[], None] | None = None  # imports, once in the parent of forked ranks

    def __str__(self) -> str:
        return f"{self.name}-{self.ranks}"


def own() -> dict[str, Any]:
    from conformance.strategies.fake_strategy import FakeStrategy

    return {"strategy": FakeStrategy}


def fsdp(version: int, **kwargs: Any) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        from accelerate import FullyShardedDataParallelPlugin

        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=version, auto_wrap_policy="TRANSFORMER_BASED_WRAP", **kwargs
        )
        return {"fsdp_plugin": plugin}

    return make


def deepspeed(stage: int) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        from accelerate import DeepSpeedPlugin

        return {"deepspeed_plugin": DeepSpeedPlugin(zero_stage=stage, zero3_save_16bit_model=True)}

    return make


CASES = [
    Case("single", 1, "NO"),
    Case("ddp", 2, "MULTI_CPU"),
    Case("ddp", 4, "MULTI_CPU"),
    Case("fake", 2, "MULTI_CPU", own),
    Case("fsdp1", 2, "FSDP", fsdp(1, use_orig_params=True)),
    Case("fsdp2", 2, "FSDP", fsdp(2)),
    Case("fsdp2", 4, "FSDP", fsdp(2)),
    Case("deepspeed2", 2, "DEEPSPEED", deepspeed(2), before=warm),
    Case("deepspeed3", 2, "DEEPSPEED", deepspeed(3), before=warm),
]


def run(case: Case, job: Job, body: Callable[..., Any] = through, **more: Any) -> list[Any]:
    def rank_main(rank: int, n: int) -> Any:
        return body(make_accelerator(job, **case.kwargs(), **more), job, n)

    if case.before is not None:
        case.before()
    return run_world(rank_main, case.ranks, how=case.how)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(
    "job",
    [
        pytest.param(Job(), id="plain"),
        pytest.param(Job(accumulate=4, batch=8, samples=80), id="accumulate"),
        pytest.param(Job(clip=0.05), id="clip"),
        pytest.param(Job(accumulate=3, clip=0.05, samples=64), id="accumulate-clip"),
        pytest.param(Job(optimizer=torch.optim.SGD, lr=0.1), id="sgd"),
    ],
)
def test_equals_one_process_on_the_same_global_batch(case: Case, job: Job) -> None:
    results: list[Result] = run(case, job)
    assert {r.extra["world"] for r in results} == {case.ranks}
    assert {r.extra["type"] for r in results} == {case.kind}
    wanted = plain(job)
    assert results[0].weights, "the main process gets the whole state"
    for result in results:
        assert_same(result, wanted, 1e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bf16_stays_close_to_float32(case: Case) -> None:
    job = Job(lr=1e-3)
    for result in run(case, job, mixed_precision="bf16"):
        assert_same(result, plain(job, torch.bfloat16), 1e-2)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_unwrapping_gives_the_users_model_with_its_own_names(case: Case) -> None:
    def body(accelerator: Any, job: Job, n: int) -> Any:
        bare = Net()
        model = accelerator.prepare(bare)
        inner = accelerator.unwrap_model(model)
        names = [name for name, _ in canonical_parameters(inner)]
        return isinstance(inner, Net), accelerator.unwrap_model(inner) is inner, names

    for own_class, same, names in run(case, Job(), body):
        assert own_class
        assert same, "an unwrapped model comes back as the same object"
        assert names == [name for name, _ in Net().named_parameters()]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_parameter_groups_are_kept(case: Case) -> None:
    def body(accelerator: Any, job: Job, n: int) -> Any:
        model = Net()
        decay = [p for p in model.parameters() if p.ndim > 1]
        rest = [p for p in model.parameters() if p.ndim <= 1]
        optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.3}, {"params": rest, "lr": 0.5}], lr=0.1)
        model, optimizer = accelerator.prepare(model, optimizer)
        mine = {id(p) for p in model.parameters()}
        groups = optimizer.param_groups
        return [(len(g["params"]), g["weight_decay"], g["lr"], {id(p) for p in g["params"]} <= mine) for g in groups]

    decays = sum(p.ndim > 1 for p in Net().parameters())
    rest = sum(p.ndim <= 1 for p in Net().parameters())
    for groups in run(case, Job(), body):
        assert groups == [(decays, 0.3, 0.1, True), (rest, 0.01, 0.5, True)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_models_in_one_script(case: Case) -> None:
    def body(accelerator: Any, job: Job, n: int) -> Any:
        first, second = Net(1), Net(2)
        a, b = torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.SGD(second.parameters(), lr=0.2)
        first, a = accelerator.prepare(first, a)
        second, b = accelerator.prepare(second, b)
        for step in range(4):
            x = torch.full((2, 12), float(step + 1))
            for model, optimizer in ((first, a), (second, b)):
                with accelerator.accumulate(model):
                    accelerator.backward(model(x).square().mean())
                    optimizer.step()
                    optimizer.zero_grad()
        return [{k: v.clone() for k, v in (accelerator.get_state_dict(m) or {}).items()} for m in (first, second)]

    wanted = []
    for seed, lr in ((1, 0.1), (2, 0.2)):
        model = Net(seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        for step in range(0, 4, 2):
            for micro in (step, step + 1):
                (model(torch.full((2, 12), float(micro + 1))).square().mean() / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
        wanted.append(model.state_dict())
    found = run(case, Job(accumulate=2), body)[0]
    for one, other in zip(found, wanted, strict=True):
        for name, tensor in other.items():
            assert torch.allclose(one[name], tensor, atol=1e-5, rtol=1e-5), name
