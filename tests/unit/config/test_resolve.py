"""Command line before environment before file before default, and what settings say about each other."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import pytest

from accelerate.cli.parser import build_launch_parser
from accelerate.config.resolve import Origin, Resolved, resolve
from accelerate.errors import ConfigError, ConflictError, EnvironmentValueError


def go(
    folder: Path, words: list[str] | None = None, environ: dict[str, str] | None = None, text: str | None = None
) -> Resolved:
    path = None
    if text is not None:
        path = folder / "config.yaml"
        path.write_text(text)
    args = None if words is None else build_launch_parser().parse_args([*words, "train.py"])
    return resolve(args, environ, path)


WHERE = {Origin.COMMAND_LINE: "--mixed_precision", Origin.ENVIRONMENT: "ACCELERATE_MIXED_PRECISION", Origin.FILE: "1"}

PLACES = {3: Origin.COMMAND_LINE, 2: Origin.ENVIRONMENT, 1: Origin.FILE, 0: Origin.DEFAULT}


@pytest.mark.parametrize("places", [c for n in range(4) for c in itertools.combinations((3, 2, 1), n)])
def test_the_strongest_place_wins_and_names_the_others(tmp_path: Path, places: tuple[int, ...]) -> None:
    words = ["--mixed_precision", "fp16"] if 3 in places else []
    environ = {"ACCELERATE_MIXED_PRECISION": "bf16"} if 2 in places else {}
    found = go(tmp_path, words, environ, "mixed_precision: fp8\n" if 1 in places else "debug: false\n")
    source = found.sources["mixed_precision"]
    values = {3: "fp16", 2: "bf16", 1: "fp8"}
    assert found.config.mixed_precision == (values[places[0]] if places else None)
    assert [item.origin for item in (source, *source.overrides)] == ([PLACES[place] for place in places] or [PLACES[0]])
    assert [item.value for item in source.overrides] == [values[place] for place in places[1:]]
    for item in (source, *source.overrides):
        if item.origin in WHERE:
            assert item.where.endswith(WHERE[item.origin])


def test_a_flag_that_repeats_a_default_still_goes_first(tmp_path: Path) -> None:
    text = "fsdp_config:\n  fsdp_version: 2\ndistributed_type: FSDP\n"
    assert go(tmp_path, [], {}, text).config.fsdp.version == 2
    found = go(tmp_path, ["--fsdp_version", "1"], {}, text)
    assert found.config.fsdp.version == 1
    assert found.sources["fsdp.version"].where == "--fsdp_version"


def test_attributes_set_after_parsing_count_as_given(tmp_path: Path) -> None:
    args = build_launch_parser().parse_args(["train.py"])
    args.num_processes, args.use_fsdp = 4, True
    found = resolve(args, {"ACCELERATE_NUM_PROCESSES": "2"})
    assert (found.config.num_processes, found.config.use_fsdp) == (4, True)


def test_a_namespace_made_by_hand_needs_no_more_than_it_says() -> None:
    found = resolve(argparse.Namespace(num_processes=2))
    assert found.config.num_processes == 2
    assert found.config.rdzv_backend == "static"


def test_switching_off_on_the_command_line_overrides_a_file(tmp_path: Path) -> None:
    found = go(tmp_path, ["--no_tpu_cluster"], {}, "tpu_use_cluster: true\n")
    assert found.config.tpu_settings.use_cluster is False
    assert found.sources["tpu_settings.use_cluster"].where == "--no_tpu_cluster"


def test_empty_variables_say_nothing(tmp_path: Path) -> None:
    assert go(tmp_path, [], {"ACCELERATE_MIXED_PRECISION": ""}).config.mixed_precision is None


def test_a_wrong_variable_is_named_with_its_choices(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentValueError, match="ACCELERATE_MIXED_PRECISION: 'b16' is not one of no, fp16"):
        go(tmp_path, [], {"ACCELERATE_MIXED_PRECISION": "b16"})


@pytest.mark.parametrize(
    ("word", "name"),
    [("FSDP", "use_fsdp"), ("DEEPSPEED", "use_deepspeed"), ("MEGATRON_LM", "use_megatron_lm"), ("XLA", "tpu")]
    + [("MULTI_CPU", "cpu"), ("MULTI_GPU", "multi_gpu"), ("MULTI_NPU", "multi_gpu")],
)
def test_the_files_word_for_a_strategy_is_the_flag(tmp_path: Path, word: str, name: str) -> None:
    found = go(tmp_path, [], {}, f"num_processes: 2\ndistributed_type: {word}\n")
    assert getattr(found.config, name) is True
    assert found.sources[name].where.endswith("config.yaml:2")
    assert found.config.distributed_type == word


def test_a_flag_replaces_the_files_strategy_and_says_so(tmp_path: Path) -> None:
    found = go(tmp_path, ["--use_deepspeed"], {}, "distributed_type: FSDP\n")
    assert (found.config.use_deepspeed, found.config.use_fsdp) == (True, False)
    assert found.config.distributed_type == "DEEPSPEED"
    assert "`use_deepspeed` (--use_deepspeed) goes before `use_fsdp`" in found.notices[0]
    assert found.environment()["ACCELERATE_USE_FSDP"] == "false"


def test_multi_gpu_on_the_command_line_is_plain_data_parallelism(tmp_path: Path) -> None:
    found = go(tmp_path, ["--multi_gpu"], {}, "distributed_type: FSDP\n")
    assert (found.config.multi_gpu, found.config.use_fsdp) == (True, False)
    assert found.config.distributed_type == "MULTI_GPU"
    both = go(tmp_path, ["--multi_gpu", "--use_fsdp"], {})
    assert (both.config.multi_gpu, both.config.use_fsdp, both.config.distributed_type) == (True, True, "FSDP")


@pytest.mark.parametrize("pair", list(itertools.combinations(["use_fsdp", "use_deepspeed", "use_megatron_lm"], 2)))
def test_two_strategies_from_one_place_are_a_conflict(tmp_path: Path, pair: tuple[str, str]) -> None:
    with pytest.raises(ConflictError, match=f"`{pair[0]}` .* and `{pair[1]}`"):
        go(tmp_path, [f"--{name}" for name in pair])
    with pytest.raises(ConflictError):
        go(tmp_path, [], {f"ACCELERATE_{name.upper()}": "true" for name in pair})


def test_sizes_are_meant_to_be_used(tmp_path: Path) -> None:
    found = go(tmp_path, ["--parallelism_config_tp_size", "2"])
    assert found.config.use_parallelism_config
    assert found.environment() == {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", "PARALLELISM_CONFIG_TP_SIZE": "2"}


def test_flags_of_a_section_that_is_not_in_force_are_said(tmp_path: Path) -> None:
    found = go(tmp_path, ["--zero_stage", "3", "--fsdp_version", "2"])
    assert len(found.notices) == 2
    assert found.notices[0].startswith("--fsdp_version has no effect here. In force with --use_fsdp")
    assert found.notices[1].startswith("--zero_stage has no effect here. In force with --use_deepspeed")
    assert found.environment() == {}
    assert go(tmp_path, [], {}, "fsdp_config:\n  fsdp_version: 2\n").notices == ()


def test_a_launch_of_fsdp_fills_what_pretrained_models_need(tmp_path: Path) -> None:
    found = go(tmp_path, ["--use_fsdp"])
    assert found.environment() == {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "1",
        "FSDP_USE_ORIG_PARAMS": "true",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
        "FSDP_SYNC_MODULE_STATES": "true",
    }
    second = go(tmp_path, ["--use_fsdp", "--fsdp_version", "2"]).environment()
    assert second == {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}


def test_values_are_published_as_every_reader_expects(tmp_path: Path) -> None:
    words = ["--use_fsdp", "--fsdp_auto_wrap_policy", "SIZE_AUTO_WRAP", "--fsdp_transformer_layer_cls_to_wrap", "A,B"]
    words += ["--fsdp_offload_params", "True", "--fsdp_sharding_strategy", "2"]
    words += ["--fsdp_backward_prefetch", "BACKWARD_PRE"]
    found = go(
        tmp_path, [*words, "--mixed_precision", "bf16", "--gradient_accumulation_steps", "4", "--cpu"]
    ).environment()
    expected = {
        "FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP",
        "FSDP_TRANSFORMER_CLS_TO_WRAP": "A,B",
        "FSDP_MIN_NUM_PARAMS": "100000000",
        "FSDP_OFFLOAD_PARAMS": "true",
        "FSDP_SHARDING_STRATEGY": "SHARD_GRAD_OP",
        "FSDP_BACKWARD_PREFETCH": "BACKWARD_PRE",
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
        "ACCELERATE_USE_CPU": "true",
    }
    assert {name: found[name] for name in expected} == expected


def test_our_own_settings(tmp_path: Path) -> None:
    words = ["--strategy", "mine", "--resume", "auto", "--hang_timeout", "5", "--engine", "torchrun", "--dry_run"]
    found = go(tmp_path, words)
    assert found.config.dry_run
    assert found.environment() == {
        "ACCELERATE_STRATEGY": "mine",
        "ACCELERATE_ENGINE": "torchrun",
        "ACCELERATE_RESUME": "auto",
        "ACCELERATE_HANG_TIMEOUT": "5.0",
    }
    assert go(tmp_path, [], {}, "strategy: mine\nhang_timeout: 3\n").config.strategy == "mine"


def test_elastic_machines(tmp_path: Path) -> None:
    assert go(tmp_path, ["--num_machines", "2:4"]).config.machine_range == (2, 4)
    assert go(tmp_path, ["--num_machines", "3"]).config.machine_range == (3, 3)
    assert go(tmp_path, []).config.num_machines == 1


def test_a_deepspeed_json_and_flags_name_the_fields_that_were_said(tmp_path: Path) -> None:
    found = go(tmp_path, ["--use_deepspeed", "--deepspeed_config_file", "ds.json", "--zero_stage", "2"])
    assert found.environment()["ACCELERATE_CONFIG_DS_FIELDS"] == "zero_stage"


def test_explain_lists_what_was_said_in_order(tmp_path: Path) -> None:
    found = go(tmp_path, ["--num_processes", "2"], {"ACCELERATE_MIXED_PRECISION": "bf16"}, "debug: true\n")
    assert [path for path, _ in found.explain()] == ["num_processes", "mixed_precision", "debug"]
    assert found.given("debug")
    assert not found.given("cpu")


def test_what_a_launch_publishes_is_what_a_worker_resolves(tmp_path: Path) -> None:
    text = "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config:\n  fsdp_version: 2\n"
    text += "  fsdp_reshard_after_forward: 4\n"
    first = go(tmp_path, ["--fsdp_activation_checkpointing", "true"], {}, text)
    second = resolve(None, first.environment())
    assert second.config.fsdp == first.config.fsdp
    assert second.config.mixed_precision == "bf16"
    assert second.config.use_fsdp


def test_a_value_of_the_wrong_kind_from_code_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="--num_processes: 'x' is not a whole number"):
        resolve(argparse.Namespace(num_processes="x"))
