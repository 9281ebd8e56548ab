"""The FSDP plugin: words, numbers and members in; torch's objects out; one notice for what was translated."""

from __future__ import annotations

import functools
import logging
import pickle
from typing import Any

import pytest
import torch
from torch.distributed import fsdp
from torch.distributed.fsdp import wrap

from accelerate.config.fsdp import FullyShardedDataParallelPlugin as Plugin
from accelerate.errors import ConfigError, ConflictError, EnvironmentValueError


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)


class Other(torch.nn.Module):
    pass


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(), Layer()])
        self.head = torch.nn.Linear(4, 2)


def test_version_1_by_default() -> None:
    plugin = Plugin()
    assert plugin.fsdp_version == 1
    assert plugin.sharding_strategy is fsdp.ShardingStrategy.FULL_SHARD
    assert plugin.reshard_after_forward is None
    assert plugin.cpu_offload == fsdp.CPUOffload(offload_params=False)
    assert plugin.state_dict_type is fsdp.StateDictType.FULL_STATE_DICT
    assert plugin.state_dict_config == fsdp.FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    assert plugin.optim_state_dict_config == fsdp.FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True)
    assert (plugin.use_orig_params, plugin.sync_module_states, plugin.forward_prefetch) == (False, False, False)
    assert (plugin.auto_wrap_policy, plugin.backward_prefetch, plugin.mixed_precision_policy) == (None, None, None)
    assert (plugin.activation_checkpointing, plugin.cpu_ram_efficient_loading) == (False, False)


def test_version_2() -> None:
    plugin = Plugin(fsdp_version=2)
    assert plugin.sharding_strategy is None
    assert plugin.reshard_after_forward is True
    assert type(plugin.cpu_offload) is fsdp.OffloadPolicy
    assert plugin.state_dict_type is fsdp.StateDictType.SHARDED_STATE_DICT
    assert isinstance(plugin.state_dict_config, fsdp.ShardedStateDictConfig)
    assert (plugin.use_orig_params, plugin.sync_module_states, plugin.forward_prefetch) == (None, None, None)


@pytest.mark.parametrize("strategy", ["SHARD_GRAD_OP", "shard_grad_op", 2, "2", fsdp.ShardingStrategy.SHARD_GRAD_OP])
def test_a_strategy_by_word_number_or_member(strategy: Any) -> None:
    assert Plugin(sharding_strategy=strategy).sharding_strategy is fsdp.ShardingStrategy.SHARD_GRAD_OP


def test_the_strategy_with_an_underscore_in_torch() -> None:
    for word in ("HYBRID_SHARD_ZERO2", fsdp.ShardingStrategy._HYBRID_SHARD_ZERO2):
        assert Plugin(sharding_strategy=word).sharding_strategy is fsdp.ShardingStrategy._HYBRID_SHARD_ZERO2


def test_version_2s_word_in_version_1_is_translated_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert Plugin(reshard_after_forward=False).sharding_strategy is fsdp.ShardingStrategy.SHARD_GRAD_OP
    assert [record.getMessage() for record in caplog.records] == [
        "reshard_after_forward=False is version 2's word; version 1 takes it as sharding_strategy=SHARD_GRAD_OP."
    ]


def test_a_strategy_under_the_other_field_of_version_1() -> None:
    plugin = Plugin(reshard_after_forward="full_shard")
    assert plugin.sharding_strategy is plugin.reshard_after_forward is fsdp.ShardingStrategy.FULL_SHARD
    assert Plugin(reshard_after_forward="shard_grad_op").sharding_strategy is fsdp.ShardingStrategy.SHARD_GRAD_OP


@pytest.mark.parametrize(("strategy", "reshard"), [("FULL_SHARD", True), ("SHARD_GRAD_OP", False)])
def test_version_1s_word_in_version_2_is_translated(
    caplog: pytest.LogCaptureFixture, strategy: str, reshard: bool
) -> None:
    with caplog.at_level(logging.WARNING):
        assert Plugin(fsdp_version=2, sharding_strategy=strategy).reshard_after_forward is reshard
    assert f"version 2 takes it as reshard_after_forward={reshard}" in caplog.text


def test_groups_that_stay_whole() -> None:
    assert Plugin(fsdp_version=2, reshard_after_forward=4).reshard_after_forward == 4
    with pytest.raises(ConfigError, match="only version 2"):
        Plugin(reshard_after_forward=4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fsdp_version": 3}, "fsdp_version=3 is not known: use 1 or 2"),
        ({"fsdp_version": 2, "sharding_strategy": "NO_SHARD"}, "version 2 always shards"),
        ({"fsdp_version": 2, "sharding_strategy": "HYBRID_SHARD"}, "ParallelismConfig.dp_replicate_size="),
        ({"fsdp_version": 2, "state_dict_type": "LOCAL_STATE_DICT"}, "SHARDED_STATE_DICT or FULL_STATE_DICT"),
        ({"sharding_strategy": "FULL"}, "use one of FULL_SHARD, SHARD_GRAD_OP"),
        ({"auto_wrap_policy": "by_magic"}, "use one of TRANSFORMER_BASED_WRAP"),
        ({"backward_prefetch": "SOMETIMES"}, "use one of BACKWARD_PRE"),
        ({"cpu_offload": "maybe"}, "use True, False or torch's own object"),
        ({"mixed_precision_policy": {"param_dtyp": "bf16"}}, "param_dtyp, which MixedPrecision does not take"),
        ({"mixed_precision_policy": {"param_dtype": "int8"}}, "no floating-point type"),
        ({"mixed_precision_policy": 7}, "version 1 takes a MixedPrecision"),
    ],
)
def test_what_cannot_be_had_says_what_can(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Plugin(**given)


@pytest.mark.parametrize("version", [1, 2])
def test_contradictions_quote_both_sides(version: int) -> None:
    with pytest.raises(ConflictError, match="sharding_strategy=FULL_SHARD and reshard_after_forward=False"):
        Plugin(fsdp_version=version, sharding_strategy="FULL_SHARD", reshard_after_forward=False)


def test_loading_on_one_rank_needs_the_others_to_be_told() -> None:
    assert Plugin(cpu_ram_efficient_loading=True).sync_module_states is True
    with pytest.raises(ConflictError, match="sync_module_states=False"):
        Plugin(cpu_ram_efficient_loading=True, sync_module_states=False)


def test_offload_in_both_versions() -> None:
    assert Plugin(cpu_offload=True).cpu_offload == fsdp.CPUOffload(offload_params=True)
    assert isinstance(Plugin(fsdp_version=2, cpu_offload=True).cpu_offload, fsdp.CPUOffloadPolicy)
    other_way = Plugin(fsdp_version=2, cpu_offload=fsdp.CPUOffload(offload_params=True))
    assert isinstance(other_way.cpu_offload, fsdp.CPUOffloadPolicy)
    assert Plugin(cpu_offload=fsdp.OffloadPolicy()).cpu_offload == fsdp.CPUOffload(offload_params=False)
    own = fsdp.CPUOffloadPolicy(pin_memory=False)
    assert Plugin(fsdp_version=2, cpu_offload=own).cpu_offload is own


def test_assigned_offload_is_checked() -> None:
    plugin = Plugin(fsdp_version=2)
    plugin.cpu_offload = True
    with pytest.raises(ConfigError, match="version 2 takes True, False or a OffloadPolicy"):
        plugin.validate_cpu_offload()
    plugin.set_cpu_offload()
    plugin.validate_cpu_offload()
    assert isinstance(plugin.cpu_offload, fsdp.CPUOffloadPolicy)


@pytest.mark.parametrize("word", ["TRANSFORMER_BASED_WRAP", "TRANSFORMER_AUTO_WRAP", "transformer_based_wrap"])
def test_units_by_layer_class(word: str) -> None:
    plugin = Plugin(auto_wrap_policy=word, transformer_cls_names_to_wrap="Layer, Linear")
    assert plugin.auto_wrap_policy is wrap.transformer_auto_wrap_policy
    assert plugin.transformer_cls_names_to_wrap == ["Layer", "Linear"]
    plugin.set_auto_wrap_policy(Model())
    policy: Any = plugin.auto_wrap_policy
    assert isinstance(policy, functools.partial)
    assert policy.keywords == {"transformer_layer_cls": {Layer, torch.nn.Linear}}
    plugin.set_auto_wrap_policy(Model())
    assert plugin.auto_wrap_policy is policy


def test_names_alone_mean_units_by_layer_class() -> None:
    assert Plugin(transformer_cls_names_to_wrap=["Layer"]).auto_wrap_policy is wrap.transformer_auto_wrap_policy


def test_a_class_that_the_model_does_not_have() -> None:
    plugin = Plugin(transformer_cls_names_to_wrap=["LlamaDecoderLayer"])
    with pytest.raises(ConfigError, match="'LlamaDecoderLayer' .* It has Layer, Linear, Model, ModuleList"):
        plugin.set_auto_wrap_policy(Model())


def test_layers_that_a_model_lists_itself() -> None:
    model = Model()
    model._no_split_modules = {"Layer", "NotHere"}  # type: ignore[assignment]
    plugin = Plugin(auto_wrap_policy="TRANSFORMER_BASED_WRAP")
    plugin.set_auto_wrap_policy(model)
    assert plugin.auto_wrap_policy.keywords["transformer_layer_cls"] == {Layer}  # type: ignore[union-attr]


def test_a_model_that_lists_no_layers_is_one_unit(caplog: pytest.LogCaptureFixture) -> None:
    plugin = Plugin(auto_wrap_policy="TRANSFORMER_AUTO_WRAP")
    with caplog.at_level(logging.WARNING):
        plugin.set_auto_wrap_policy(Model())
    assert plugin.auto_wrap_policy.keywords["transformer_layer_cls"] == set()  # type: ignore[union-attr]
    assert "Model does not list its layers, so it becomes one unit" in caplog.text


def test_units_by_size() -> None:
    plugin = Plugin(auto_wrap_policy="SIZE_AUTO_WRAP", min_num_params=10)
    plugin.set_auto_wrap_policy(Model())
    assert plugin.auto_wrap_policy.keywords == {"min_num_params": 10}  # type: ignore[union-attr]


def test_ones_own_policy_is_left_alone() -> None:
    def mine(**kwargs: Any) -> bool:
        return True

    plugin = Plugin(auto_wrap_policy=mine)
    plugin.set_auto_wrap_policy(Model())
    assert plugin.auto_wrap_policy is mine
    assert Plugin(auto_wrap_policy="NO_WRAP").auto_wrap_policy is None


def test_mixed_precision_in_version_1() -> None:
    plugin = Plugin(mixed_precision_policy="bf16")
    assert plugin.mixed_precision_policy == fsdp.MixedPrecision(
        param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16
    )
    before = plugin.mixed_precision_policy
    plugin.set_mixed_precision("fp16")
    assert plugin.mixed_precision_policy is before
    plugin.set_mixed_precision(torch.float16, buffer_autocast=True, override=True)
    assert plugin.mixed_precision_policy == fsdp.MixedPrecision(
        param_dtype=torch.float16, reduce_dtype=torch.float16, buffer_dtype=torch.float32
    )


def test_mixed_precision_in_version_2() -> None:
    plugin = Plugin(
        fsdp_version=2, mixed_precision_policy={"param_dtype": "torch.bfloat16", "cast_forward_inputs": False}
    )
    assert plugin.mixed_precision_policy == fsdp.MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, cast_forward_inputs=False
    )
    plugin.set_mixed_precision(torch.bfloat16, override=True)
    assert plugin.mixed_precision_policy == fsdp.MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, output_dtype=torch.bfloat16
    )
    given = fsdp.MixedPrecisionPolicy(param_dtype=torch.float16)
    assert Plugin(fsdp_version=2, mixed_precision_policy=given).mixed_precision_policy is given


def test_the_other_versions_policy_is_translated() -> None:
    first = fsdp.MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    assert Plugin(fsdp_version=2, mixed_precision_policy=first).mixed_precision_policy == fsdp.MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    second = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    assert Plugin(mixed_precision_policy=second).mixed_precision_policy == fsdp.MixedPrecision(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )


def test_state_kind_may_change_later() -> None:
    plugin = Plugin()
    plugin.set_state_dict_type("SHARDED_STATE_DICT")
    assert plugin.state_dict_type is fsdp.StateDictType.SHARDED_STATE_DICT
    assert isinstance(plugin.optim_state_dict_config, fsdp.ShardedOptimStateDictConfig)
    assert "SHARDED_STATE_DICT" in str(plugin.state_dict_type)
    own = fsdp.FullStateDictConfig(offload_to_cpu=False)
    assert Plugin(state_dict_config=own).state_dict_config is own


def test_everything_from_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "VERSION": "1",
        "SHARDING_STRATEGY": "3",
        "OFFLOAD_PARAMS": "true",
        "AUTO_WRAP_POLICY": "SIZE_BASED_WRAP",
        "MIN_NUM_PARAMS": "7",
        "BACKWARD_PREFETCH": "BACKWARD_POST",
        "FORWARD_PREFETCH": "true",
        "STATE_DICT_TYPE": "SHARDED_STATE_DICT",
        "USE_ORIG_PARAMS": "true",
        "SYNC_MODULE_STATES": "true",
        "CPU_RAM_EFFICIENT_LOADING": "true",
        "ACTIVATION_CHECKPOINTING": "true",
        "ACTIVATION_CHECKPOINTING_OFFLOAD": "true",
        "TRANSFORMER_CLS_TO_WRAP": "A,B",
        "IGNORED_MODULES": "lm_head",
    }.items():
        monkeypatch.setenv(f"FSDP_{name}", value)
    plugin = Plugin()
    assert plugin.sharding_strategy is fsdp.ShardingStrategy.NO_SHARD
    assert plugin.cpu_offload == fsdp.CPUOffload(offload_params=True)
    assert plugin.auto_wrap_policy is wrap.size_based_auto_wrap_policy
    assert plugin.backward_prefetch is fsdp.BackwardPrefetch.BACKWARD_POST
    assert plugin.state_dict_type is fsdp.StateDictType.SHARDED_STATE_DICT
    assert (plugin.min_num_params, plugin.transformer_cls_names_to_wrap) == (7, ["A", "B"])
    assert plugin.ignored_modules == "lm_head"
    for name in ("forward_prefetch", "use_orig_params", "sync_module_states", "cpu_ram_efficient_loading"):
        assert getattr(plugin, name) is True
    assert plugin.activation_checkpointing is plugin.activation_checkpointing_offload is True


def test_code_goes_before_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSDP_VERSION", "1")
    monkeypatch.setenv("FSDP_USE_ORIG_PARAMS", "true")
    monkeypatch.setenv("FSDP_ACTIVATION_CHECKPOINTING", "true")
    plugin = Plugin(fsdp_version=2, activation_checkpointing=False)
    assert (plugin.fsdp_version, plugin.activation_checkpointing, plugin.use_orig_params) == (2, False, None)


def test_a_launchs_words_for_version_1_are_dropped_silently_in_version_2(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FSDP_SYNC_MODULE_STATES", "true")
    with caplog.at_level(logging.WARNING):
        assert Plugin(fsdp_version=2).sync_module_states is None
    assert caplog.text == ""
    with caplog.at_level(logging.WARNING):
        assert Plugin(fsdp_version=2, use_orig_params=True).use_orig_params is None
    assert "use_orig_params=True is left out" in caplog.text


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSDP_STATE_DICT_TYPE", "HALF_STATE_DICT")
    with pytest.raises(EnvironmentValueError, match="FSDP_STATE_DICT_TYPE: 'HALF_STATE_DICT' is not one of FULL_STATE"):
        Plugin()


@pytest.mark.parametrize("version", [1, 2])
def test_pickles(version: int) -> None:
    plugin = Plugin(
        fsdp_version=version,
        mixed_precision_policy="bf16",
        cpu_offload=True,
        auto_wrap_policy="TRANSFORMER_BASED_WRAP",
        transformer_cls_names_to_wrap=["Layer"],
    )
    plugin.set_auto_wrap_policy(Model())
    again = pickle.loads(pickle.dumps(plugin))
    assert again.mixed_precision_policy == plugin.mixed_precision_policy
    assert again.auto_wrap_policy.keywords == plugin.auto_wrap_policy.keywords  # type: ignore[union-attr]


def test_class_found_by_name() -> None:
    assert Plugin.get_module_class_from_name(Model(), "Layer") is Layer
    assert Plugin.get_module_class_from_name(Model(), "Nowhere") is None
