"""One resolved configuration: what "auto" becomes, and that two places that differ are both shown."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from accelerate.config.deepspeed import DeepSpeedPlugin
from accelerate.errors import ConfigError, ConflictError
from accelerate.strategies.deepspeed.facts import Facts, batch_size_of, hidden_size_of
from accelerate.strategies.deepspeed.placeholders import DummyOptim, DummyScheduler
from accelerate.strategies.deepspeed.resolve import autos, resolve

# Every key that DeepSpeed's and transformers' documentation leave "auto".
EVERYTHING: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "fp16": {
        "enabled": "auto",
        "loss_scale": "auto",
        "initial_scale_power": "auto",
        "loss_scale_window": "auto",
        "hysteresis": "auto",
        "min_loss_scale": "auto",
    },
    "bf16": {"enabled": "auto"},
    "zero_optimization": {
        "stage": "auto",
        "overlap_comm": "auto",
        "contiguous_gradients": "auto",
        "reduce_bucket_size": "auto",
        "allgather_bucket_size": "auto",
        "sub_group_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": "auto",
        "stage3_max_reuse_distance": "auto",
        "stage3_gather_16bit_weights_on_model_save": "auto",
        "offload_optimizer": {"device": "auto", "nvme_path": "auto", "pin_memory": "auto"},
        "offload_param": {"device": "auto", "nvme_path": "auto", "pin_memory": "auto"},
    },
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_min_lr": "auto",
            "warmup_max_lr": "auto",
            "warmup_num_steps": "auto",
            "total_num_steps": "auto",
        },
    },
}


def facts(**changes: Any) -> Facts:
    optimizer = DummyOptim([nn.Parameter(torch.zeros(1))], lr=0.2, weight_decay=0.1)
    scheduler = DummyScheduler(optimizer, total_num_steps=101, warmup_num_steps=10)
    given: dict[str, Any] = {
        "ranks": 2, "steps": 4, "batches": (8, 3), "hidden_size": 64, "optimizer": optimizer, "scheduler": scheduler,
        "moves": 2,
    }  # fmt: skip
    return Facts(**{**given, **changes})


def test_every_auto_is_filled_and_shown() -> None:
    plugin = DeepSpeedPlugin(hf_ds_config=EVERYTHING, zero_stage=3, gradient_clipping=0.5)
    plugin.set_mixed_precision("bf16")
    found = resolve(plugin, facts())
    assert list(autos(found)) == []
    assert found["train_micro_batch_size_per_gpu"] == 3
    assert found["gradient_accumulation_steps"] == 4
    assert found["train_batch_size"] == 3 * 4 * 2
    assert found["gradient_clipping"] == 0.5
    assert (found["fp16"]["enabled"], found["bf16"]["enabled"]) == (False, True)
    zero = found["zero_optimization"]
    assert zero["stage"] == 3
    assert zero["reduce_bucket_size"] == 64 * 64
    assert zero["stage3_prefetch_bucket_size"] == int(0.9 * 64 * 64)
    assert zero["stage3_param_persistence_threshold"] == 640
    assert zero["sub_group_size"] == 1_000_000_000
    assert zero["overlap_comm"] is True
    assert found["optimizer"]["params"] == {"lr": 0.2, "betas": [0.9, 0.999], "eps": 1e-08, "weight_decay": 0.1}
    assert found["scheduler"]["params"] == {
        "warmup_min_lr": 0, "warmup_max_lr": 0.2, "warmup_num_steps": 5, "total_num_steps": 51,
    }  # fmt: skip
    assert list(autos(plugin.deepspeed_config)) == [], "what was filled can be read where it was open"


def test_what_was_open_stays_open_for_the_next_model() -> None:
    plugin = DeepSpeedPlugin(hf_ds_config=EVERYTHING, zero_stage=2)
    assert resolve(plugin, facts())["zero_optimization"]["reduce_bucket_size"] == 64 * 64
    again = resolve(plugin, facts(hidden_size=8, batches=(5,)))
    assert again["zero_optimization"]["reduce_bucket_size"] == 64
    assert again["train_batch_size"] == 5 * 4 * 2


def test_what_a_script_wrote_afterwards_is_kept() -> None:
    plugin = DeepSpeedPlugin(hf_ds_config=EVERYTHING, zero_stage=2)
    resolve(plugin, facts())
    plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = 8
    assert resolve(plugin, facts())["train_micro_batch_size_per_gpu"] == 8


def test_buffers_have_deepspeeds_sizes_where_the_width_is_not_known() -> None:
    plugin = DeepSpeedPlugin(hf_ds_config=EVERYTHING, zero_stage=2)
    zero = resolve(plugin, facts(hidden_size=None))["zero_optimization"]
    assert zero["reduce_bucket_size"] == 500_000_000
    assert zero["stage3_param_persistence_threshold"] == 100_000


def test_without_loaders_a_batch_size_follows_from_the_whole() -> None:
    plugin = DeepSpeedPlugin(hf_ds_config={**copy.deepcopy(EVERYTHING), "train_batch_size": 48}, zero_stage=2)
    assert resolve(plugin, facts(batches=()))["train_micro_batch_size_per_gpu"] == 6


def real(name: str = "SGD") -> torch.optim.Optimizer:
    return getattr(torch.optim, name)([nn.Parameter(torch.zeros(1))], lr=0.1)


def schedule(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def changed(**values: Any) -> dict[str, Any]:
    return {**copy.deepcopy(EVERYTHING), **values}


def params(section: str, **values: Any) -> dict[str, Any]:
    config = copy.deepcopy(EVERYTHING)
    config[section]["params"].update(values)
    return config


def both(config: Any, given: Facts, **fields: Any) -> Callable[[], Any]:
    return lambda: resolve(DeepSpeedPlugin(hf_ds_config=config, **{"zero_stage": 2, **fields}), given)


def precision() -> Any:
    return DeepSpeedPlugin(hf_ds_config=changed(fp16={"enabled": True})).set_mixed_precision("bf16")


CONTRADICTIONS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "stage": (both({"zero_optimization": {"stage": 3}}, facts()), ["zero_optimization.stage", "3", "zero_stage=2"]),
    "accumulation in plugin and JSON": (
        both(changed(gradient_accumulation_steps=2), facts(), gradient_accumulation_steps=8),
        ["gradient_accumulation_steps` is 2", "gradient_accumulation_steps=8"],
    ),
    "accumulation in Accelerator and JSON": (
        both(changed(gradient_accumulation_steps=2), facts(steps=4)),
        ["gradient_accumulation_steps=4 in Accelerator()", "gradient_accumulation_steps=2"],
    ),
    "clipping": (
        both(changed(gradient_clipping=1.0), facts(), gradient_clipping=0.5),
        ["is 1.0", "gradient_clipping=0.5"],
    ),
    "offload": (
        both(
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
            facts(),
            offload_optimizer_device="nvme",
        ),
        ["offload_optimizer.device` is 'cpu'", "offload_optimizer_device='nvme'"],
    ),
    "micro-batch": (
        both(changed(train_micro_batch_size_per_gpu=4), facts()),
        ["train_micro_batch_size_per_gpu` is 4", "3, 8"],
    ),
    "whole batch": (
        both(changed(train_batch_size=100), facts()),
        ["train_batch_size` is 100", "3 samples", "4 accumulation steps", "2 processes make 24"],
    ),
    "precision": (precision, ["mixed_precision='bf16'", "fp16 enabled"]),
    "two precisions": (
        both(changed(fp16={"enabled": True}, bf16={"enabled": True}), facts()),
        ["fp16.enabled=True", "bf16.enabled=True"],
    ),
    "optimizer": (both(EVERYTHING, facts(optimizer=real(), scheduler=None)), ["AdamW", "SGD"]),
    "scheduler": (
        both(changed(optimizer=None), facts(optimizer=(o := real()), scheduler=schedule(o))),
        ["WarmupDecayLR", "ExponentialLR"],
    ),
    "learning rate": (both(params("optimizer", lr=0.7), facts()), ["optimizer.params.lr` is 0.7", "lr=0.2"]),
    "configuration given twice": (
        lambda: DeepSpeedPlugin.from_settings({"hf_ds_config": "a.json", "zero_optimization": {"stage": 1}}),
        ["hf_ds_config", "zero_optimization"],
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_names_both_values(name: str) -> None:
    call, words = CONTRADICTIONS[name]
    with pytest.raises(ConflictError) as caught:
        call()
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in: {caught.value}"


def test_the_launch_gives_way_to_code_about_accumulation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2")
    plugin = DeepSpeedPlugin(zero_stage=2)
    assert resolve(plugin, facts(optimizer=None, scheduler=None, steps=4))["gradient_accumulation_steps"] == 4
    plugin = DeepSpeedPlugin(zero_stage=2)
    assert resolve(plugin, facts(optimizer=None, scheduler=None, steps=1))["gradient_accumulation_steps"] == 2


@pytest.mark.parametrize(
    ("config", "given", "words"),
    [
        (changed(nonsense={"depth": "auto"}), facts(), "`nonsense.depth` is \"auto\""),
        (EVERYTHING, facts(scheduler=DummyScheduler(None)), "DummyScheduler(optimizer, total_num_steps=…)"),
        (changed(zero_optimization={"stage": 2, "never_heard": "auto"}), facts(), "no such key"),
    ],
)  # fmt: skip
def test_an_auto_that_nothing_fills_is_named(config: Any, given: Facts, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        both(config, given)()


def test_the_width_of_a_model() -> None:
    def model(**config: Any) -> Any:
        return SimpleNamespace(config=SimpleNamespace(**config))

    assert hidden_size_of(model(hidden_size=32)) == 32
    assert hidden_size_of(model(hidden_sizes=[8, 64, 16])) == 64
    assert hidden_size_of(model(text_config=SimpleNamespace(hidden_size=48))) == 48
    assert hidden_size_of(nn.Linear(2, 2)) is None
    assert hidden_size_of(model(config={"hidden_size": 4})) is None


def test_the_batch_size_of_a_loader() -> None:
    data = torch.zeros(10, 1)
    assert batch_size_of(torch.utils.data.DataLoader(data, batch_size=4)) == 4
    sampler = torch.utils.data.BatchSampler(range(10), 5, False)
    assert batch_size_of(torch.utils.data.DataLoader(data, batch_sampler=sampler)) == 5
    assert batch_size_of(torch.utils.data.DataLoader(data, batch_size=None)) is None
