"""Configuration files of every age are read; what no setting owns is refused with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from accelerate.config.files import cache_directory, default_config_path, find_config_file, read_config_file
from accelerate.config.resolve import resolve
from accelerate.config.run import RunConfig
from accelerate.errors import ConfigError, UnknownKeyError
from unit.config import samples


def load(folder: Path, text: str, name: str = "config.yaml") -> RunConfig:
    path = folder / name
    path.write_text(text)
    return resolve(None, {}, path).config


def test_a_bool_for_precision_and_words_for_everything_else(tmp_path: Path) -> None:
    config = load(tmp_path, samples.OLDEST)
    assert (config.mixed_precision, config.num_processes, config.multi_gpu) == ("fp16", 2, True)


def test_empty_sections_bare_no_and_a_back_end_at_the_top(tmp_path: Path) -> None:
    config = load(tmp_path, samples.EARLY)
    assert config.mixed_precision == "no"
    assert config.dynamo.backend == "inductor"
    assert config.main_process_ip is None


def test_section_keys_without_their_prefix(tmp_path: Path) -> None:
    config = load(tmp_path, samples.UNPREFIXED_FSDP)
    assert config.use_fsdp
    assert (config.fsdp.min_num_params, config.fsdp.offload_params) == (2000, True)
    assert config.fsdp.sharding_strategy == "SHARD_GRAD_OP"


def test_keys_that_mean_nothing_any_more_are_left_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(samples.IPEX_AND_MPI)
    read = read_config_file(path)
    assert [notice.split("`")[1] for notice in read.notices] == [
        "ipex_config.ipex",
        "ipex_config.use_xpu",
        "mpirun_config.mpirun_ccl",
    ]
    config = resolve(None, {}, read).config
    assert (config.mpi.hostfile, config.cpu, config.num_processes) == ("/home/me/hosts", True, 16)


def test_sagemaker_with_a_key_said_twice(tmp_path: Path) -> None:
    config = load(tmp_path, samples.SAGEMAKER)
    assert config.compute_environment == "AMAZON_SAGEMAKER"
    assert config.sagemaker.ec2_instance_type == "ml.g5.xlarge"
    assert (config.distributed_type, config.mixed_precision) == ("NO", "fp16")


def test_fp8(tmp_path: Path) -> None:
    config = load(tmp_path, samples.FP8)
    assert (config.fp8.backend, config.fp8.format, config.fp8.amax_history_len) == ("te", "E4M3", 512)
    assert config.fp8.override_linear_precision == (False, True, False)


def test_fsdp_2(tmp_path: Path) -> None:
    config = load(tmp_path, samples.FSDP_2)
    assert (config.fsdp.version, config.fsdp.reshard_after_forward, config.fsdp.offload_params) == (2, True, False)
    assert config.fsdp.transformer_layer_cls_to_wrap == ("LlamaDecoderLayer",)


def test_tpu_under_its_older_name(tmp_path: Path) -> None:
    config = load(tmp_path, samples.TPU)
    assert config.tpu
    assert (config.tpu_settings.name, config.tpu_settings.env) == ("mine", ("A=1", "B=2"))
    assert (config.tpu_settings.commands, config.tpu_settings.command_file) == (None, "setup.sh")


def test_deepspeed_mesh_and_megatron(tmp_path: Path) -> None:
    config = load(tmp_path, samples.DEEPSPEED)
    assert config.use_deepspeed
    assert (config.gradient_accumulation_steps, config.gradient_clipping, config.deepspeed.zero_stage) == (4, 1.0, 2)
    config = load(tmp_path, samples.MESH)
    assert config.use_parallelism_config
    assert (config.parallelism.dp_shard_size, config.parallelism.tp_size) == (2, 2)
    config = load(tmp_path, samples.MEGATRON)
    assert config.use_megatron_lm
    assert (config.megatron.pp_degree, config.megatron.sequence_parallelism) == (2, True)


def test_json_and_json_with_tabs(tmp_path: Path) -> None:
    data = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}, "num_processes": 2}
    assert load(tmp_path, json.dumps(data), "a.json").fsdp.version == 2
    assert load(tmp_path, json.dumps(data, indent="\t"), "b.json").fsdp.version == 2


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    assert load(tmp_path, "") == RunConfig()


def test_unknown_keys_are_all_named_with_lines_and_near_names(tmp_path: Path) -> None:
    text = "num_proceses: 2\ninvalid_key: x\nfsdp_config:\n  fsdp_versoin: 2\n  fsdp_version: 2\n"
    with pytest.raises(UnknownKeyError) as refused:
        load(tmp_path, text)
    lines = str(refused.value).splitlines()
    assert "3 keys" in lines[0]
    assert lines[1:4] == [
        "  line 1: `num_proceses` Did you mean `num_processes`?",
        "  line 2: `invalid_key`",
        "  line 4: `fsdp_config.fsdp_versoin` Did you mean `fsdp_config.fsdp_version`?",
    ]


def test_a_section_key_at_the_top_is_sent_to_its_section(tmp_path: Path) -> None:
    with pytest.raises(UnknownKeyError, match=r"`fsdp_version` Did you mean `fsdp_config\.fsdp_version`"):
        load(tmp_path, "fsdp_version: 2\n")


def test_a_setting_said_twice_in_different_words_is_a_conflict(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`fp16: fp16` on line 1 and `mixed_precision: bf16` on line 2"):
        load(tmp_path, "fp16: true\nmixed_precision: bf16\n")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("num_processes: two\n", "config.yaml:1: num_processes: 'two' is not a whole number"),
        ("\nmixed_precision: b16\n", "config.yaml:2: mixed_precision: 'b16' is not one of"),
        ("fsdp_config:\n  fsdp_version: 3\n", "config.yaml:2: fsdp_config.fsdp_version: 3 is not one of 1, 2"),
        ("- a\n", "is a mapping of keys to values"),
        ("a: [\n", "cannot be read as YAML"),
    ],
)
def test_wrong_values_name_their_place(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, text)
    assert place in str(refused.value)


def test_deepspeeds_own_json_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}))
    found = resolve(None, {}, path)
    assert found.config.use_deepspeed
    assert found.config.mixed_precision == "bf16"
    assert found.config.deepspeed.deepspeed_config_file == str(path)
    assert found.environment() == {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(path),
    }
    assert "is a DeepSpeed configuration" in found.notices[0]


def test_auto_precision_of_a_deepspeed_json_is_left_open(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"bf16": {"enabled": "auto"}, "train_batch_size": "auto"}))
    assert resolve(None, {}, path).config.mixed_precision is None


def test_where_the_default_file_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "huggingface" / "accelerate"
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    folder = tmp_path / "hf" / "accelerate"
    assert default_config_path() == folder / "default_config.yaml"
    assert find_config_file(None) is None
    folder.mkdir(parents=True)
    (folder / "default_config.json").write_text("{}")
    assert find_config_file(None) == folder / "default_config.json"
    (folder / "default_config.yaml").write_text("")
    assert find_config_file(None) == folder / "default_config.yaml"


def test_a_missing_file_offers_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "fsdp.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"Did you mean .*fsdp\.yaml"):
        find_config_file(tmp_path / "fsdp.yml")
