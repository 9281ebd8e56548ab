"""Handlers, recipes and the other plugin records."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import torch

from accelerate.config.compile import TorchDynamoPlugin
from accelerate.config.data import DataLoaderConfiguration
from accelerate.config.enums import CustomDtype, DDPCommunicationHookType, DynamoBackend
from accelerate.config.handlers import (
    AutocastKwargs,
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    KwargsHandler,
    ProfileKwargs,
)
from accelerate.config.precision import AORecipeKwargs, FP8RecipeKwargs, MSAMPRecipeKwargs, TERecipeKwargs
from accelerate.config.project import ProjectConfiguration
from accelerate.config.quantization import BnbQuantizationConfig
from accelerate.errors import ConfigError, ConflictError, EnvironmentValueError


def test_handlers_give_what_was_chosen() -> None:
    assert AutocastKwargs().to_kwargs() == {}
    assert AutocastKwargs(cache_enabled=True).to_kwargs() == {"cache_enabled": True}
    assert GradScalerKwargs(init_scale=2.0).to_kwargs() == {"init_scale": 2.0}
    assert GradientAccumulationPlugin(num_steps=2).to_kwargs() == {"num_steps": 2}
    assert GradientAccumulationPlugin(num_steps=2).to_dict() == {
        "num_steps": 2,
        "adjust_scheduler": True,
        "sync_with_dataloader": True,
        "sync_each_batch": False,
    }


def test_a_handler_of_ones_own() -> None:
    @dataclass
    class Mine(KwargsHandler):
        needed: int
        usual: int = 3

    assert Mine(1).to_kwargs() == {"needed": 1}
    assert Mine(1, 4).to_kwargs() == {"needed": 1, "usual": 4}


def test_ddp() -> None:
    handler = DistributedDataParallelKwargs(comm_hook="fp16", bucket_cap_mb=5)  # type: ignore[arg-type]
    assert handler.comm_hook is DDPCommunicationHookType.FP16
    assert handler.to_kwargs() == {"bucket_cap_mb": 5}
    assert "comm_hook" not in handler.to_dict()
    assert handler.to_dict(ignore_keys=())["comm_hook"] is DDPCommunicationHookType.FP16
    assert DistributedDataParallelKwargs(find_unused_parameters=True, static_graph=True).to_kwargs() == {
        "find_unused_parameters": True,
        "static_graph": True,
    }
    with pytest.raises(ConfigError, match="'fp61'.*use one of no, fp16, bf16"):
        DistributedDataParallelKwargs(comm_hook="fp61")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cannot wrap another hook"):
        DistributedDataParallelKwargs(comm_wrapper=DDPCommunicationHookType.POWER_SGD)  # type: ignore[arg-type]


def test_process_group() -> None:
    assert InitProcessGroupKwargs().timeout == timedelta(minutes=10)
    assert InitProcessGroupKwargs().to_kwargs() == {}
    assert InitProcessGroupKwargs(backend="gloo").to_kwargs() == {"backend": "gloo", "timeout": timedelta(minutes=30)}
    assert InitProcessGroupKwargs(timeout=timedelta(seconds=5)).to_kwargs() == {"timeout": timedelta(seconds=5)}


def test_profiler() -> None:
    def ready(profiler: Any) -> None: ...

    profiler = ProfileKwargs(
        activities=["cpu"],
        schedule_option={"wait": 0, "warmup": 1, "active": 1, "repeat": 1},
        on_trace_ready=ready,
        record_shapes=True,
        with_flops=True,
    ).build()
    action = torch.profiler.ProfilerAction
    assert set(profiler.activities) == {torch.profiler.ProfilerActivity.CPU}
    assert [profiler.schedule(step) for step in range(3)] == [action.WARMUP, action.RECORD_AND_SAVE, action.NONE]
    assert profiler.on_trace_ready is ready
    assert (profiler.record_shapes, profiler.with_flops, profiler.with_stack) == (True, True, False)
    assert torch.profiler.ProfilerActivity.CPU in ProfileKwargs().build().activities
    with pytest.raises(ConfigError, match="activity 'gpu' is not known here: use cpu, cuda"):
        ProfileKwargs(activities=["gpu"]).build()  # type: ignore[list-item]


# ---- recipes


def test_te_from_the_launch_and_from_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TERecipeKwargs() == TERecipeKwargs(False, 0, 1, "HYBRID", 1024, "most_recent", (False, False, False), False)
    monkeypatch.setenv("ACCELERATE_FP8_MARGIN", "3")
    monkeypatch.setenv("ACCELERATE_FP8_FORMAT", "e4m3")
    monkeypatch.setenv("ACCELERATE_FP8_OVERRIDE_LINEAR_PRECISION", "(true, false, True)")
    monkeypatch.setenv("ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL", "true")
    recipe = TERecipeKwargs(interval=2)
    assert (recipe.margin, recipe.interval, recipe.fp8_format) == (3, 2, "E4M3")
    assert recipe.override_linear_precision == (True, False, True)
    assert recipe.to_kwargs() == {
        "use_autocast_during_eval": True,
        "margin": 3,
        "interval": 2,
        "fp8_format": "E4M3",
        "override_linear_precision": (True, False, True),
    }
    with pytest.raises(ConfigError, match="fp8_format='E5M3' is not one of HYBRID, E4M3, E5M2"):
        TERecipeKwargs(fp8_format="E5M3")  # type: ignore[arg-type]


def test_other_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MSAMPRecipeKwargs().opt_level == "O2"
    assert (AORecipeKwargs().pad_inner_dim, AORecipeKwargs().enable_fsdp_float8_all_gather) == (True, True)
    both = FP8RecipeKwargs(backend="msamp", opt_level="o1")  # type: ignore[arg-type]
    assert (both.backend, both.opt_level, both.margin) == ("MSAMP", "O1", 0)
    assert isinstance(both, TERecipeKwargs)
    assert FP8RecipeKwargs().backend == "TE"
    monkeypatch.setenv("ACCELERATE_FP8_PAD_INNER_DIM", "false")
    monkeypatch.setenv("ACCELERATE_FP8_BACKEND", "ao")
    assert AORecipeKwargs().pad_inner_dim is False
    with pytest.raises(ConfigError, match="pass AORecipeKwargs instead"):
        FP8RecipeKwargs()


# ---- compilation


def test_no_back_end_compiles_nothing() -> None:
    plugin = TorchDynamoPlugin(backend=None, mode=None, dynamic=None)  # type: ignore[arg-type]
    assert plugin.backend is DynamoBackend.NO
    assert plugin.to_kwargs() == {}


@pytest.mark.parametrize("backend", ["inductor", "INDUCTOR", DynamoBackend.INDUCTOR])
def test_a_back_end_by_word_or_member(backend: Any) -> None:
    plugin = TorchDynamoPlugin(backend=backend, dynamic=False, mode="default", use_regional_compilation=True)
    assert plugin.to_kwargs() == {"backend": "inductor", "dynamic": False}
    assert plugin.to_dict()["use_regional_compilation"] is True


def test_compilation_from_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR")
    monkeypatch.setenv("ACCELERATE_DYNAMO_MODE", "reduce-overhead")
    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_FULLGRAPH", "true")
    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_DYNAMIC", "true")
    assert TorchDynamoPlugin().to_kwargs() == {
        "backend": "inductor",
        "mode": "reduce-overhead",
        "fullgraph": True,
        "dynamic": True,
    }
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "deductor")
    with pytest.raises(
        EnvironmentValueError, match="ACCELERATE_DYNAMO_BACKEND: 'deductor' is not one of no, .*inductor"
    ):
        TorchDynamoPlugin()
    with pytest.raises(ConfigError, match="backend='deductor' is not known"):
        TorchDynamoPlugin(backend="deductor")  # type: ignore[arg-type]


# ---- data, projects, quantisation


def test_loader_configuration_is_seedable_and_can_be_changed() -> None:
    config = DataLoaderConfiguration(split_batches=True)
    assert config.use_seedable_sampler
    config.data_seed, config.non_blocking, config.dispatch_batches = 3, True, False
    assert (config.data_seed, config.non_blocking, config.dispatch_batches) == (3, True, False)


def test_project_directories() -> None:
    assert ProjectConfiguration("here").logging_dir == "here"
    assert ProjectConfiguration("here", "logs").logging_dir == "logs"
    config = ProjectConfiguration()
    config.set_directories("later")
    assert (config.project_dir, config.logging_dir) == ("later", "later")
    config.set_directories("moved")
    assert (config.project_dir, config.logging_dir) == ("moved", "later")


def test_quantisation() -> None:
    eight = BnbQuantizationConfig(load_in_8bit=True)
    assert (eight.torch_dtype, eight.target_dtype) == (torch.float16, torch.int8)
    four = BnbQuantizationConfig(load_in_4bit=True, torch_dtype="bf16", bnb_4bit_compute_dtype="bf16")  # type: ignore[arg-type]
    assert (four.torch_dtype, four.target_dtype) == (torch.bfloat16, CustomDtype.INT4)
    assert four.bnb_4bit_compute_dtype == torch.bfloat16  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "neither is on"),
        ({"load_in_4bit": True, "load_in_8bit": True}, "both is on"),
        ({"load_in_4bit": 1}, "load_in_4bit=1 has to be True or False"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "int4"}, "use fp4 or nf4"),
        ({"load_in_4bit": True, "bnb_4bit_compute_dtype": "fp12"}, "use fp32, fp16, bf16"),
        ({"load_in_4bit": True, "skip_modules": "head"}, "has to be a list of names"),
    ],
)
def test_quantisation_that_cannot_be(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BnbQuantizationConfig(**given)
    assert issubclass(ConflictError, ValueError)


@pytest.mark.parametrize(
    "record",
    [
        DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.BF16),
        InitProcessGroupKwargs(),
        TERecipeKwargs(),
        FP8RecipeKwargs(),
        TorchDynamoPlugin(backend="eager"),  # type: ignore[arg-type]
        DataLoaderConfiguration(),
        ProjectConfiguration("x"),
        BnbQuantizationConfig(load_in_8bit=True),
    ],
    ids=lambda record: type(record).__name__,
)
def test_records_pickle(record: Any) -> None:
    assert pickle.loads(pickle.dumps(record)) == record
