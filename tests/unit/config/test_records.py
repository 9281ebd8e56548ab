"""Configurations as records and as files that are read again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from accelerate.commands.config import config_args, default_config_file, load_config_from_file
from accelerate.config.enums import DistributedType, SageMakerDistributedType
from accelerate.config.records import ClusterConfig, SageMakerConfig
from accelerate.config.resolve import resolve
from accelerate.config.run import RunConfig
from accelerate.config.save import to_mapping, to_yaml, write
from accelerate.config.sections.fsdp import FsdpSection
from accelerate.config.sections.tpu import TpuSection
from accelerate.errors import ConfigError, UnknownKeyError
from unit.config import samples


@pytest.mark.parametrize("name", samples.ALL)
def test_every_age_of_file_has_a_record(tmp_path: Path, name: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(samples.ALL[name])
    record = load_config_from_file(path)
    assert isinstance(record, SageMakerConfig if name == "sagemaker" else ClusterConfig)
    again = tmp_path / "again.yaml"
    record.to_yaml_file(again)
    assert load_config_from_file(str(again)) == record
    as_json = tmp_path / "again.json"
    record.to_json_file(as_json)
    assert type(record).from_json_file(as_json) == record
    assert type(record).from_yaml_file(again).to_dict() == record.to_dict()


def test_a_record_in_detail(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(samples.FSDP_2)
    record = load_config_from_file(path)
    assert isinstance(record, ClusterConfig)
    assert record.distributed_type is DistributedType.FSDP
    assert record.fsdp_config is not None
    assert record.fsdp_config["fsdp_version"] == 2
    assert (record.deepspeed_config, record.num_processes, record.use_cpu) == ({}, 4, False)
    assert record.to_dict()["distributed_type"] == "FSDP"
    assert "deepspeed_config" not in record.to_dict()


def test_older_words(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(samples.OLDEST)
    assert load_config_from_file(path).mixed_precision == "fp16"
    path.write_text(samples.EARLY)
    early = load_config_from_file(path)
    assert (early.mixed_precision, early.dynamo_config) == ("no", {"dynamo_backend": "INDUCTOR"})
    path.write_text(samples.TPU)
    assert load_config_from_file(path).distributed_type is DistributedType.XLA
    path.write_text(samples.SAGEMAKER)
    assert load_config_from_file(path).distributed_type is SageMakerDistributedType.NO


def test_refusals(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("nowhere: 1\n")
    with pytest.raises(UnknownKeyError, match="`nowhere`"):
        load_config_from_file(path)
    path.write_text("compute_environment: AMAZON_SAGEMAKER\n")
    with pytest.raises(ConfigError, match="needs ec2_instance_type, iam_role_name"):
        load_config_from_file(path)
    path.write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    with pytest.raises(ConfigError, match="DeepSpeed's own"):
        load_config_from_file(path)


def test_places_are_worked_out_when_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from accelerate.config import places

    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert places.default_yaml_config_file == str(tmp_path / "accelerate" / "default_config.yaml")
    assert places.hf_cache_home == str(tmp_path)
    assert default_config_file.endswith("default_config.yaml")
    assert config_args.default_json_config_file.endswith("default_config.json")
    with pytest.raises(ConfigError, match="does not exist"):
        load_config_from_file(None)
    (tmp_path / "accelerate").mkdir()
    write(RunConfig(), places.default_yaml_config_file)
    assert isinstance(load_config_from_file(None), ClusterConfig)


# ---- saving


@pytest.mark.parametrize("name", [name for name in samples.ALL if name != "sagemaker"])
def test_saved_and_read_again_is_the_same(tmp_path: Path, name: str) -> None:
    first_path = tmp_path / "config.yaml"
    first_path.write_text(samples.ALL[name])
    first = resolve(None, {}, first_path).config
    for again in (write(first, tmp_path / "deep" / "again.yaml"), write(first, tmp_path / "again.json")):
        second = resolve(None, {}, again).config
        expected = replace(
            first, distributed_type=second.distributed_type, mixed_precision=first.mixed_precision or "no"
        )
        assert second == expected
        assert isinstance(load_config_from_file(again), ClusterConfig)


def test_what_a_file_always_names() -> None:
    found = to_mapping(RunConfig())
    assert found == {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": "NO",
        "downcast_bf16": "no",
        "enable_cpu_affinity": False,
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": "no",
        "num_machines": 1,
        "rdzv_backend": "static",
        "same_network": False,
        "use_cpu": False,
    }


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (RunConfig(cpu=True, num_processes=2), "MULTI_CPU"),
        (RunConfig(cpu=True), "NO"),
        (RunConfig(multi_gpu=True), "MULTI_GPU"),
        (RunConfig(multi_gpu=True, distributed_type="MULTI_XPU"), "MULTI_XPU"),
        (RunConfig(use_fsdp=True, cpu=True, num_processes=2), "FSDP"),
        (RunConfig(tpu=True), "XLA"),
        (RunConfig(use_deepspeed=True, distributed_type="FSDP"), "DEEPSPEED"),
    ],
)
def test_the_files_word_for_a_strategy(config: RunConfig, word: str) -> None:
    assert to_mapping(config)["distributed_type"] == word


def test_comments_say_what_keys_mean_and_change_nothing() -> None:
    config = RunConfig(
        use_fsdp=True,
        fsdp=FsdpSection(version=2, transformer_layer_cls_to_wrap=("A", "B")),
        tpu_settings=TpuSection(env=("A=1", "B: 2")),
        gradient_accumulation_steps=4,
    )
    mapping = to_mapping(config)
    assert mapping["gradient_accumulation_steps"] == 4
    assert mapping["fsdp_config"] == {"fsdp_version": 2, "fsdp_transformer_layer_cls_to_wrap": ["A", "B"]}
    text = to_yaml(mapping)
    assert yaml.safe_load(text) == yaml.safe_load(to_yaml(mapping, comments=False)) == mapping
    assert "fsdp_version: 2  # Version of FSDP" in text
    assert "#" not in to_yaml(mapping, comments=False)


def test_accumulation_stands_where_other_readers_look_for_it() -> None:
    found = to_mapping(RunConfig(use_deepspeed=True, gradient_accumulation_steps=4))
    assert found["deepspeed_config"] == {"gradient_accumulation_steps": 4}
    assert "gradient_accumulation_steps" not in found
