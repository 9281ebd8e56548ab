"""Training with DeepSpeed's engine against PyTorch in one process: two ranks, twenty steps, the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.errors import ConfigError, PrepareError, StateError
from accelerate.state import AcceleratorState, GradientState
from accelerate.test_utils.world import run_world
from accelerate.utils import DeepSpeedSchedulerWrapper, DummyOptim, DummyScheduler
from conformance.strategies.jobs import CLASSES, Job, Net, Result, assert_same, make_accelerator, plain, through
from deepspeed_jobs import warm

pytestmark = pytest.mark.usefixtures("deepspeed_is_warm")
deepspeed_is_warm = pytest.fixture(scope="module")(warm)

JOBS = [Job(), Job(accumulate=4), Job(clip=0.05), Job(accumulate=3, clip=0.05, samples=64)]


def forget() -> None:
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


def run_jobs(jobs: list[Job], settings: dict[str, Any], **kwargs: Any) -> list[Result]:
    """The result of each job on rank 0, all in one pair of ranks."""

    def rank_main(rank: int, world: int) -> list[Result]:
        results = []
        for job in jobs:
            forget()
            accelerator = make_accelerator(job, deepspeed_plugin=DeepSpeedPlugin(**settings), **kwargs)
            results.append(through(accelerator, job, world))
        return results

    return run_world(rank_main, 2, how="fork")[0]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_equals_one_process(stage: int) -> None:
    results = run_jobs(JOBS, {"zero_stage": stage, "zero3_save_16bit_model": True})
    for job, result in zip(JOBS, results, strict=True):
        assert_same(result, plain(job), 1e-6)
        assert result.extra == {"world": 2, "type": "DEEPSPEED"}


@pytest.mark.parametrize("stage", [2, 3])
def test_equals_one_process_with_state_in_main_memory(stage: int) -> None:
    settings = {"zero_stage": stage, "offload_optimizer_device": "cpu", "zero3_save_16bit_model": True}
    if stage == 3:
        settings["offload_param_device"] = "cpu"
    for job, result in zip(JOBS, run_jobs(JOBS, settings), strict=True):
        assert_same(result, plain(job), 1e-6)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_bf16_stays_close(stage: int) -> None:
    jobs = [Job(lr=1e-3), Job(lr=1e-3, accumulate=2, clip=0.5)]
    results = run_jobs(jobs, {"zero_stage": stage, "zero3_save_16bit_model": True}, mixed_precision="bf16")
    for job, result in zip(jobs, results, strict=True):
        wanted = plain(job, torch.bfloat16)
        for found, exact in zip(result.norms, wanted.norms, strict=True):
            assert found == pytest.approx(exact, rel=5e-2)
        wanted.norms, result.norms = [], []
        assert_same(result, wanted, 1e-2)
        assert result.weights["inp.weight"].dtype is torch.bfloat16


# Schedules


def trained(make: Callable[[Any], tuple[Any, Any]], config: Any, steps: int = 8) -> list[tuple[list[float], bool]]:
    """Learning rate after each step, and whether the engine drives the schedule."""

    def rank_main(rank: int, world: int) -> tuple[list[float], bool]:
        accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config))
        net = Net()
        optimizer, scheduler = make(net)
        model, optimizer, scheduler = accelerator.prepare(net, optimizer, scheduler)
        rates = []
        for _ in range(steps):
            accelerator.backward(model(torch.ones(2, 12)).square().mean())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            rates.append(float(optimizer.param_groups[0]["lr"]))
        return rates, isinstance(scheduler, DeepSpeedSchedulerWrapper)

    return run_world(rank_main, 2, how="fork")


WARMUP = {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.4, "warmup_num_steps": "auto",
                                         "warmup_type": "linear"}}  # fmt: skip
ADAMW = {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto", "betas": "auto", "eps": "auto"}}


def test_a_schedule_and_an_optimizer_of_the_configuration() -> None:
    config = {"zero_optimization": {"stage": 2}, "optimizer": ADAMW, "scheduler": WARMUP}

    def make(net: nn.Module) -> tuple[Any, Any]:
        optimizer = DummyOptim(net.parameters(), lr=0.4, weight_decay=0.1)
        return optimizer, DummyScheduler(optimizer, warmup_num_steps=8)  # of one process: 4 steps of two

    for rates, own in trained(make, config):
        assert own
        assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4])


def test_a_schedule_made_by_a_callable() -> None:
    config = {"zero_optimization": {"stage": 1}, "optimizer": ADAMW}

    def make(net: nn.Module) -> tuple[Any, Any]:
        optimizer = DummyOptim(net.parameters(), lr=0.4)
        halve = torch.optim.lr_scheduler.ExponentialLR
        return optimizer, DummyScheduler(optimizer, lr_scheduler_callable=lambda o: halve(o, 0.5))

    for rates, own in trained(make, config, steps=3):
        assert own
        assert rates == pytest.approx([0.2, 0.1, 0.05])


def test_a_schedule_of_torch_moves_as_everywhere() -> None:
    def make(net: nn.Module) -> tuple[Any, Any]:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.4)
        return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    for rates, own in trained(make, {"zero_optimization": {"stage": 2}}, steps=2):
        assert not own
        assert rates == pytest.approx([0.1, 0.025])  # one move for each of two processes


# Windows


def micro_steps(stage: int, steps: int, body: Callable[[Accelerator, Any, Any, Any], None]) -> list[torch.Tensor]:
    """A linear model after ``body``, whole, on every rank."""

    def rank_main(rank: int, world: int) -> Any:
        plugin = DeepSpeedPlugin(zero_stage=stage, zero3_save_16bit_model=True)
        accelerator = Accelerator(deepspeed_plugin=plugin, gradient_accumulation_steps=steps)
        net = nn.Linear(3, 2, bias=False)
        nn.init.ones_(net.weight)
        model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=1.0))
        body(accelerator, model, optimizer, rank)
        return accelerator.get_state_dict(model).get("weight")

    return [found for found in run_world(rank_main, 2, how="fork") if found is not None]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_windows_of_every_kind(stage: int) -> None:
    """The gradient of ``model(x).sum()`` is x, so weights say what was summed."""

    def body(accelerator: Accelerator, model: Any, optimizer: Any, rank: int) -> None:
        def push(value: float) -> None:
            accelerator.backward(model(torch.full((1, 3), value + rank)).sum())

        for value in (1.0, 3.0):  # nobody opens windows: the configuration counts
            push(value)
            optimizer.step()
            optimizer.zero_grad()
        assert accelerator.sync_gradients
        with accelerator.no_sync(model):  # by hand
            push(2.0)
        accelerator.sync_gradients = True
        push(4.0)
        optimizer.step()
        push(100.0)
        push(100.0)
        optimizer.zero_grad()  # thrown away
        optimizer.step()
        for value in (5.0, 7.0):
            with accelerator.accumulate(model):
                push(value)
                optimizer.step()
                optimizer.zero_grad()

    # mean of each pair over both ranks, of which the second has one more
    expected = 1.0 - (2.0 + 0.5) - (3.0 + 0.5) - (6.0 + 0.5)
    for weight in micro_steps(stage, 2, body):
        assert torch.allclose(weight, torch.full((2, 3), expected)), weight


def test_a_loss_that_is_divided_already() -> None:
    """A Trainer counts itself, where a configuration has the same window too."""

    def body(accelerator: Accelerator, model: Any, optimizer: Any, rank: int) -> None:
        for value in (1.0, 3.0):
            accelerator.backward(model(torch.full((1, 3), value + rank)).sum() / 2, scale_wrt_gas=False)
            optimizer.step()

    for weight in micro_steps(1, 2, body):
        assert torch.allclose(weight, torch.full((2, 3), 1.0 - 2.5)), weight


def test_a_backward_that_would_lose_gradients_is_refused() -> None:
    def body(accelerator: Accelerator, model: Any, optimizer: Any, rank: int) -> None:
        accelerator.backward(model(torch.ones(1, 3)).sum())
        with pytest.raises(StateError, match="twice without optimizer.step"):
            accelerator.backward(model(torch.ones(1, 3)).sum())
        optimizer.step()

    micro_steps(2, 1, body)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_means_over_items_are_exact(stage: int) -> None:
    """Ranks with unlike counts: the gradient is the mean over all items."""

    def body(accelerator: Accelerator, model: Any, optimizer: Any, rank: int) -> None:
        for micro in range(2):
            count = 1 + rank + 2 * micro
            with accelerator.accumulate(model, num_items=count):
                accelerator.backward(model(torch.full((1, 3), float(count))).sum())
                norm = accelerator.clip_grad_norm_(model.parameters(), float("inf"))
                optimizer.step()
        assert float(norm) == pytest.approx(6**0.5 * 3.0, rel=1e-6)

    # counts 1, 2, 3, 4 and gradients equal to them: (1 + 4 + 9 + 16) / 10
    for weight in micro_steps(stage, 2, body):
        assert torch.allclose(weight, torch.full((2, 3), 1.0 - 3.0)), weight


def test_clipping_in_code_goes_before_the_configuration() -> None:
    def rank_main(rank: int, world: int) -> list[float]:
        accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=2, gradient_clipping=0.5))
        net = nn.Linear(4, 1, bias=False)
        nn.init.zeros_(net.weight)
        model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=1.0))
        moved = []
        for clip in (None, 0.25):
            before = net.weight.detach().clone()
            accelerator.backward(model(torch.ones(1, 4)).sum())
            if clip is not None:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            moved.append((net.weight.detach() - before).norm().item())
        return moved

    for moved in run_world(rank_main, 2, how="fork"):
        assert moved == pytest.approx([0.5, 0.25], rel=1e-4)


# Several engines, models without one, sharded starts


def test_two_engines_in_turn_and_a_loss_through_both() -> None:
    def rank_main(rank: int, world: int) -> Any:
        plugins = {"small": DeepSpeedPlugin(zero_stage=2), "large": DeepSpeedPlugin(zero_stage=1)}
        accelerator = Accelerator(deepspeed_plugins=plugins)
        found = []
        for name in plugins:
            accelerator.state.select_deepspeed_plugin(name)
            net = nn.Linear(3, 3, bias=False)
            nn.init.eye_(net.weight)
            found.append(accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=1.0)))
        (first, first_optimizer), (second, second_optimizer) = found
        stages = [first.zero_optimization_stage(), second.zero_optimization_stage()]
        one, other = first(torch.ones(1, 3)), second(torch.ones(1, 3) * 2)
        accelerator.backward(other.sum())  # not the one that ran last before
        second_optimizer.step()
        accelerator.backward(one.sum())
        first_optimizer.step()
        weights = [unwrapped.weight.sum().item() for unwrapped in map(accelerator.unwrap_model, (first, second))]
        accelerator.backward(second(first(torch.ones(1, 3))).sum())
        first_optimizer.step()
        second_optimizer.step()
        both = [unwrapped.weight.sum().item() for unwrapped in map(accelerator.unwrap_model, (first, second))]
        return stages, weights, both

    for stages, weights, both in run_world(rank_main, 2, how="fork"):
        assert stages == [2, 1]
        assert weights == [3.0 - 9.0, 3.0 - 18.0]
        # d/dW1 = (column sums of W2) outer ones: -5 in nine places; d/dW2 = ones outer (row sums of W1): -2
        assert both == [-6.0 + 45.0, -15.0 + 18.0]


def test_models_that_are_only_evaluated() -> None:
    def rank_main(rank: int, world: int) -> Any:
        accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=3, zero3_save_16bit_model=True))
        kept = accelerator.prepare_model(nn.Linear(3, 2), evaluation_mode=True)
        sharded = accelerator.prepare(Net())
        bare = accelerator.unwrap_model(sharded)
        with torch.no_grad():
            shape = tuple(sharded(torch.ones(2, 12)).shape)
        parts = sum(parameter.ds_tensor.numel() for parameter in bare.parameters())
        whole = sum(parameter.numel() for parameter in Net().parameters())
        return type(kept).__name__, type(sharded).__name__, isinstance(bare, Net), shape, parts < whole

    assert run_world(rank_main, 2, how="fork") == [("Linear", "DeepSpeedEngine", True, (2, CLASSES), True)] * 2


def test_what_cannot_be_prepared_says_why() -> None:
    def rank_main(rank: int, world: int) -> None:
        accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=2))
        net, other = nn.Linear(2, 2), nn.Linear(2, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with pytest.raises(PrepareError, match="an optimizer without its model"):
            accelerator.prepare(optimizer)
        with pytest.raises(PrepareError, match="2 models"):
            accelerator.prepare(net, other, optimizer)
        with pytest.raises(PrepareError, match="no section `optimizer`"):
            accelerator.prepare(net, DummyOptim(net.parameters()))
        with pytest.raises(PrepareError, match="no section `scheduler`"):
            accelerator.prepare(net, optimizer, DummyScheduler(optimizer))

    run_world(rank_main, 2, how="fork")


def test_float16_on_the_cpu_is_refused_before_anything_is_made() -> None:
    def rank_main(rank: int, world: int) -> None:
        for kwargs in ({"mixed_precision": "fp16"}, {}):
            config = {"zero_optimization": {"stage": 2}, **({} if kwargs else {"fp16": {"enabled": True}})}
            with pytest.raises(ConfigError, match="DeepSpeed has no float16 on the CPU"):
                Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config), **kwargs)

    run_world(rank_main, 2, how="fork")


def test_whole_weights_of_stage_3_need_gathering(tmp_path: Any) -> None:
    def rank_main(rank: int, world: int) -> Any:
        for gather in (False, True):
            forget()
            plugin = DeepSpeedPlugin(zero_stage=3, zero3_save_16bit_model=gather)
            accelerator = Accelerator(deepspeed_plugin=plugin)
            net = Net()
            model, _ = accelerator.prepare(net, torch.optim.AdamW(net.parameters()))
            if not gather:
                with pytest.raises(ValueError, match="zero3_save_16bit_model=True"):
                    accelerator.get_state_dict(model)
                continue
            accelerator.save_model(model, tmp_path)
            with accelerator_gathered(net):
                return net.out.weight.detach().clone()
        return None

    from safetensors.torch import load_file

    found = run_world(rank_main, 2, how="fork")
    saved = load_file(tmp_path / "model.safetensors")
    assert sorted(saved) == sorted(Net().state_dict())
    assert torch.equal(saved["out.weight"], Net().state_dict()["out.weight"])
    assert torch.equal(found[1], saved["out.weight"])


def accelerator_gathered(net: nn.Module) -> Any:
    from accelerate.utils import GatheredParameters

    return GatheredParameters(list(net.parameters()))


def test_a_transformers_model_starts_sharded(tmp_path: Any) -> None:
    def rank_main(rank: int, world: int) -> Any:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
        )
        torch.manual_seed(0)
        reference = LlamaForCausalLM(config)
        if rank == 0:
            reference.save_pretrained(tmp_path)
        plugin = DeepSpeedPlugin(zero_stage=3, zero3_init_flag=True, zero3_save_16bit_model=True)
        accelerator = Accelerator(deepspeed_plugin=plugin)
        plugin.set_deepspeed_weakref()
        accelerator.wait_for_everyone()
        model = LlamaForCausalLM.from_pretrained(tmp_path)
        sharded = all(parameter.numel() == 0 for parameter in model.parameters())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        tokens = torch.arange(8).reshape(1, 8)
        model, optimizer, _ = accelerator.prepare(model, optimizer, DataLoader([0, 1], batch_size=1))
        loss = model(input_ids=tokens, labels=tokens).loss
        accelerator.backward(loss)
        optimizer.step()
        with torch.no_grad():
            wanted = reference(input_ids=tokens, labels=tokens).loss.item()
        with plugin.zero3_init_context_manager(enable=False):
            whole = all(parameter.numel() > 0 for parameter in LlamaForCausalLM(config).parameters())
        return sharded, loss.item(), wanted, whole, plugin.deepspeed_config["zero_optimization"]

    for sharded, loss, wanted, whole, zero in run_world(rank_main, 2, how="fork"):
        assert sharded
        assert whole
        assert loss == pytest.approx(wanted, rel=1e-6)
        assert zero["stage"] == 3
