"""DeepSpeed: whatever it is given leads to one configuration, and two different values to an error."""

from __future__ import annotations

import base64
import json
import logging
import math
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from accelerate.config.deepspeed import DeepSpeedPlugin, HfDeepSpeedConfig
from accelerate.errors import ConfigError, ConflictError, StateError

STOCK = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {
        "stage": 2,
        "offload_optimizer": {"device": "none", "nvme_path": None},
        "offload_param": {"device": "none", "nvme_path": None},
        "stage3_gather_16bit_weights_on_model_save": False,
    },
    "gradient_clipping": "auto",
    "steps_per_print": math.inf,
}


def test_nothing_said() -> None:
    plugin = DeepSpeedPlugin()
    assert plugin.deepspeed_config == STOCK
    assert plugin.deepspeed_config is plugin.hf_ds_config.config
    assert (plugin.zero_stage, plugin.gradient_accumulation_steps, plugin.zero3_init_flag) == (2, "auto", False)
    assert (plugin.offload_optimizer_device, plugin.offload_param_nvme_path) == ("none", "none")


def test_fields_are_written_into_the_configuration() -> None:
    plugin = DeepSpeedPlugin(
        zero_stage=3,
        gradient_accumulation_steps=4,
        gradient_clipping=1.0,
        offload_optimizer_device="nvme",
        offload_optimizer_nvme_path="/disk",
        zero3_save_16bit_model=True,
    )
    assert plugin.deepspeed_config["gradient_accumulation_steps"] == 4
    assert plugin.deepspeed_config["gradient_clipping"] == 1.0
    assert plugin.deepspeed_config["zero_optimization"] == {
        "stage": 3,
        "offload_optimizer": {"device": "nvme", "nvme_path": "/disk"},
        "offload_param": {"device": "none", "nvme_path": None},
        "stage3_gather_16bit_weights_on_model_save": True,
    }
    assert plugin.is_zero3_init_enabled()


def test_everything_from_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "DEEPSPEED_ZERO_STAGE": "3",
        "DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu",
        "DEEPSPEED_OFFLOAD_PARAM_DEVICE": "cpu",
        "DEEPSPEED_ZERO3_INIT": "false",
        "DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true",
        "DEEPSPEED_MOE_LAYER_CLS_NAMES": "A,B",
        "GRADIENT_ACCUMULATION_STEPS": "4",
        "GRADIENT_CLIPPING": "0.5",
        "FP8_BACKEND": "msamp",
        "FP8_OPT_LEVEL": "O1",
    }.items():
        monkeypatch.setenv(f"ACCELERATE_{name}", value)
    with pytest.raises(ConfigError, match="enable_msamp=True works with ZeRO stages 0 to 2"):
        DeepSpeedPlugin()
    monkeypatch.setenv("ACCELERATE_FP8_BACKEND", "te")
    plugin = DeepSpeedPlugin()
    assert (plugin.zero_stage, plugin.offload_optimizer_device, plugin.offload_param_device) == (3, "cpu", "cpu")
    assert (plugin.zero3_init_flag, plugin.zero3_save_16bit_model) == (False, True)
    assert (plugin.gradient_accumulation_steps, plugin.gradient_clipping) == (4, 0.5)
    assert (plugin.transformer_moe_cls_names, plugin.enable_msamp, plugin.msamp_opt_level) == ("A,B", False, "O1")


def test_a_json_by_path_text_base64_or_dictionary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"zero_optimization": {"stage": 1}, "gradient_accumulation_steps": 3}
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(data))
    for source in (
        data,
        str(path),
        path,
        json.dumps(data),
        base64.urlsafe_b64encode(json.dumps(data).encode()).decode(),
    ):
        plugin = DeepSpeedPlugin(source)
        assert (plugin.zero_stage, plugin.gradient_accumulation_steps) == (1, 3)
        assert plugin.deepspeed_config == {**data, "steps_per_print": math.inf}
    assert "steps_per_print" not in data
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(path))
    assert DeepSpeedPlugin().zero_stage == 1


@pytest.mark.parametrize("source", ["/nowhere/ds.json", "[1, 2]", 7])
def test_what_is_no_configuration(source: Any) -> None:
    with pytest.raises(ConfigError, match="no DeepSpeed configuration|A DeepSpeed configuration is|instead of a JSON"):
        DeepSpeedPlugin(source)


def test_an_object_is_kept_as_it_is() -> None:
    class Mine(HfDeepSpeedConfig):
        pass

    given = Mine({"zero_optimization": {"stage": 3}})
    plugin = DeepSpeedPlugin(hf_ds_config=given)
    assert plugin.hf_ds_config is given
    assert plugin.deepspeed_config is given.config
    assert given.is_zero3()


def test_auto_is_filled_by_a_field_and_missing_keys_are_added() -> None:
    plugin = DeepSpeedPlugin(
        {"zero_optimization": {"stage": "auto"}, "gradient_clipping": "auto"},
        zero_stage=1,
        gradient_accumulation_steps=2,
    )
    assert plugin.deepspeed_config["zero_optimization"] == {"stage": 1}
    assert plugin.deepspeed_config["gradient_clipping"] == "auto"
    assert plugin.deepspeed_config["gradient_accumulation_steps"] == 2


def test_a_configuration_without_zero_is_stage_0() -> None:
    plugin = DeepSpeedPlugin({"bf16": {"enabled": True}})
    assert plugin.zero_stage == 0
    assert "zero_optimization" not in plugin.deepspeed_config


CONTRADICTIONS = [
    ("zero_stage", 2, {"zero_optimization": {"stage": 3}}, 3),
    ("gradient_accumulation_steps", 4, {"gradient_accumulation_steps": 2}, 2),
    ("gradient_clipping", 1.0, {"gradient_clipping": 0.5}, 0.5),
    ("offload_optimizer_device", "cpu", {"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}, "nvme"),
    ("offload_param_device", "cpu", {"zero_optimization": {"offload_param": {"device": "none"}}}, "none"),
    ("offload_param_nvme_path", "/a", {"zero_optimization": {"offload_param": {"nvme_path": "/b"}}}, "/b"),
    (
        "zero3_save_16bit_model",
        True,
        {"zero_optimization": {"stage3_gather_16bit_weights_on_model_save": False}},
        False,
    ),
]


@pytest.mark.parametrize(("field", "value", "config", "said"), CONTRADICTIONS)
def test_contradictions_name_both_values(field: str, value: Any, config: dict[str, Any], said: Any) -> None:
    with pytest.raises(ConflictError) as refused:
        DeepSpeedPlugin(config, **{field: value})
    assert f"is {said!r} in its configuration, and {field}={value!r}." in str(refused.value)


def test_a_contradicting_launch_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "1")
    with pytest.raises(ConflictError, match=r"is 3 .* zero_stage=1 \(ACCELERATE_DEEPSPEED_ZERO_STAGE\)"):
        DeepSpeedPlugin({"zero_optimization": {"stage": 3}})


def test_plain_settings() -> None:
    plugin = DeepSpeedPlugin.from_settings(
        {"zero_stage": 2, "offload_optimizer": False, "gradient_accumulation_steps": 4, "offload_param": "cpu"}
    )
    assert (plugin.zero_stage, plugin.offload_optimizer_device, plugin.offload_param_device) == (2, "none", "cpu")
    assert plugin.deepspeed_config["gradient_accumulation_steps"] == 4
    nested = DeepSpeedPlugin.from_settings(
        {"zero_stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/d"}}
    )
    assert (nested.offload_optimizer_device, nested.offload_optimizer_nvme_path) == ("nvme", "/d")


def test_plain_settings_may_be_deepspeeds_own() -> None:
    plugin = DeepSpeedPlugin.from_settings(
        {
            "train_batch_size": 8,
            "zero_optimization": {"stage": 1},
            "communication_data_type": "fp32",
            "gradient_clipping": 1.0,
        }
    )
    assert plugin.deepspeed_config["train_batch_size"] == 8
    assert plugin.deepspeed_config["communication_data_type"] == "fp32"
    assert (plugin.zero_stage, plugin.gradient_clipping) == (1, 1.0)


def test_a_misspelt_setting() -> None:
    with pytest.raises(ConfigError, match="'zero_stag': 2.*Did you mean 'zero_stage'"):
        DeepSpeedPlugin.from_settings({"zero_stag": 2})


def test_a_configuration_given_twice() -> None:
    with pytest.raises(ConflictError, match="given twice"):
        DeepSpeedPlugin.from_settings({"hf_ds_config": {}, "train_batch_size": 8})


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("fp16", {"fp16": {"enabled": True, "auto_cast": True}, "bf16": {"enabled": False}}),
        ("bf16", {"fp16": {"enabled": False}, "bf16": {"enabled": True}}),
        ("fp8", {"fp16": {"enabled": False}, "bf16": {"enabled": True}}),
        ("no", {"fp16": {"enabled": False}, "bf16": {"enabled": False}}),
    ],
)
def test_precision_of_a_configuration_that_leaves_it_open(word: str, expected: dict[str, Any]) -> None:
    plugin = DeepSpeedPlugin()
    plugin.set_mixed_precision(word)
    assert {name: plugin.deepspeed_config[name] for name in ("fp16", "bf16")} == expected
    auto = DeepSpeedPlugin({"fp16": {"enabled": "auto", "loss_scale": 0}, "bf16": {"enabled": "auto"}})
    auto.set_mixed_precision(word)
    assert auto.deepspeed_config["fp16"] == {"enabled": word == "fp16", "loss_scale": 0}
    assert auto.deepspeed_config["bf16"] == {"enabled": word in ("bf16", "fp8")}


def test_precision_that_the_configuration_has_chosen() -> None:
    config = {"fp16": {"enabled": True}, "bf16": {"enabled": "auto"}}
    plugin = DeepSpeedPlugin(config)
    assert plugin.configured_precision() == "fp16"
    plugin.set_mixed_precision("no")
    assert plugin.deepspeed_config["fp16"]["enabled"] is True
    with pytest.raises(ConflictError, match="mixed_precision='bf16', but .* fp16 enabled"):
        plugin.set_mixed_precision("bf16")
    with pytest.raises(ConflictError, match="mixed_precision='bf16', but .* bf16 switched off"):
        DeepSpeedPlugin({"bf16": {"enabled": False}}).set_mixed_precision("bf16")


def test_fill_match() -> None:
    plugin = DeepSpeedPlugin()
    different: list[str] = []
    plugin.fill_match("train_batch_size", different, train_batch_size=8)
    assert (plugin.get_value("train_batch_size"), different) == (8, [])
    plugin.fill_match("train_batch_size", different, train_batch_size=9)
    assert different == ["- train_batch_size: 8 in the DeepSpeed configuration, 9 elsewhere"]
    plugin.fill_match("train_batch_size", different, must_match=False, train_batch_size=9)
    plugin.fill_match("optimizer.params.lr", different, **{"optimizer.params.lr": 1.0})
    assert len(different) == 1
    assert plugin.is_auto("gradient_clipping")
    with pytest.raises(ConfigError, match='`gradient_clipping` is "auto"'):
        plugin.fill_match("gradient_clipping", different)


def test_process_fills_every_auto_and_lists_every_difference() -> None:
    plugin = DeepSpeedPlugin(
        {
            "train_batch_size": "auto",
            "optimizer": {"params": {"lr": "auto", "eps": 1e-8}},
            "zero_optimization": {"stage": 1},
        }
    )
    plugin.deepspeed_config_process(**{"train_batch_size": 16, "optimizer.params.lr": 0.1})
    assert plugin.get_value("optimizer.params.lr") == 0.1
    with pytest.raises(ConflictError) as refused:
        plugin.deepspeed_config_process(**{"train_batch_size": 8, "optimizer.params.eps": 1e-6})
    assert "- train_batch_size: 16" in str(refused.value)
    assert "- optimizer.params.eps: 1e-08" in str(refused.value)
    plugin.deepspeed_config_process(must_match=False, train_batch_size=8)


def test_a_sharded_start_is_for_stage_3(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert DeepSpeedPlugin(zero_stage=2, zero3_init_flag=True).zero3_init_flag is False
    assert "zero3_init_flag=True has no effect: zero_stage is 2" in caplog.text


def test_sharded_start_inside_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = DeepSpeedPlugin(zero_stage=3)
    told: list[bool] = []
    monkeypatch.setattr(DeepSpeedPlugin, "set_deepspeed_weakref", lambda self: told.append(self.zero3_init_flag))
    with plugin.zero3_init_context_manager(enable=True):
        assert told == []
    with plugin.zero3_init_context_manager(enable=False):
        assert not plugin.is_zero3_init_enabled()
    assert told == [False, True]


def test_only_the_state_selects() -> None:
    plugin = DeepSpeedPlugin()
    with pytest.raises(StateError, match="select_deepspeed_plugin"):
        plugin.select()
    assert not plugin.selected
    plugin.select(_from_accelerator_state=True)
    assert plugin.selected


def test_pickles() -> None:
    plugin = DeepSpeedPlugin(zero_stage=3)
    again = pickle.loads(pickle.dumps(plugin))
    assert again.deepspeed_config == plugin.deepspeed_config
    assert again.deepspeed_config is again.hf_ds_config.config


def test_experts_that_the_model_does_not_have() -> None:
    import torch

    DeepSpeedPlugin().set_moe_leaf_modules(torch.nn.Linear(1, 1))
    with pytest.raises(ConfigError, match="names Nowhere, which Linear does not have"):
        DeepSpeedPlugin(transformer_moe_cls_names="Linear,Nowhere").set_moe_leaf_modules(torch.nn.Linear(1, 1))


def test_the_tree() -> None:
    data = {
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        "a": {"b": {"c": 1, "t": "true", "f": False}},
    }
    tree = HfDeepSpeedConfig(data)
    assert (tree.is_zero2(), tree.is_zero3(), tree.is_offload()) == (True, False, True)
    assert (tree.get_value("a.b.c"), tree.get_value("a.x.c", 7), tree.get_value("a.b.c.d")) == (1, 7, None)
    assert tree.find_config_node("a.b.c") == (tree.config["a"]["b"], "c")
    assert tree.find_config_node("a.z.c") == (None, "c")
    assert (tree.is_true("a.b.t"), tree.is_true("a.b.f"), tree.is_true("a.b.z")) == (True, False, False)
    assert (tree.is_false("a.b.f"), tree.is_false("a.b.z")) == (True, False)
    tree.del_config_sub_tree("a.b")
    assert tree.config["a"] == {}
    assert "b" in data["a"]
    tree.del_config_sub_tree("a.b")
    with pytest.raises(ValueError, match="a.b is not in this"):
        tree.del_config_sub_tree("a.b", must_exist=True)
    tree.set_value("x.y", 1)
    assert tree.get_value("x.y") == 1
    assert not HfDeepSpeedConfig(
        {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}
    ).is_offload()


def test_transformers_is_told_of_a_sharded_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate.config import deepspeed_start

    told: list[Any] = []
    holder = ModuleType("transformers.integrations.deepspeed")
    holder.HfDeepSpeedConfig = lambda config: told.append(config) or "held"  # type: ignore[attr-defined, func-returns-value]
    holder.unset_hf_deepspeed_config = lambda: told.append(None)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers.integrations.deepspeed", holder)
    monkeypatch.setattr(deepspeed_start, "is_transformers_available", lambda: True)
    plugin = DeepSpeedPlugin(zero_stage=3, gradient_accumulation_steps=4)
    plugin.set_deepspeed_weakref()
    assert plugin.dschf == "held"
    assert (told[0]["train_micro_batch_size_per_gpu"], told[0]["gradient_accumulation_steps"]) == (1, 4)
    assert "train_batch_size" not in told[0]
    assert plugin.deepspeed_config["train_batch_size"] == "auto"
    with plugin.zero3_init_context_manager(enable=False):
        assert plugin.dschf is None
    assert (len(told), told[1], plugin.dschf) == (3, None, "held")
    monkeypatch.setattr(deepspeed_start, "is_transformers_available", lambda: False)
    plugin.set_deepspeed_weakref()
    assert (len(told), plugin.dschf) == (3, None)
