"""The command line of a launch."""

from __future__ import annotations

import argparse

import pytest

from accelerate.cli.parser import GIVEN, build_launch_parser


def parse(*words: str) -> argparse.Namespace:
    return build_launch_parser().parse_args([*words, "train.py"])


def test_both_spellings_and_short_flags() -> None:
    assert parse("--num_processes", "3").num_processes == 3
    assert parse("--num-processes", "3").num_processes == 3
    assert parse("-m").module is True
    assert parse("-q").quiet is True
    assert parse("-t", "3").tee == "3"


def test_script_takes_the_rest_of_the_line() -> None:
    found = build_launch_parser().parse_args(["--cpu", "train.py", "--lr", "1", "--cpu", "--", "x"])
    assert found.training_script == "train.py"
    assert found.training_script_args == ["--lr", "1", "--cpu", "--", "x"]


def test_what_was_given_is_kept_beside_its_default() -> None:
    found = parse(
        "--fsdp_version", "1", "--fsdp_use_orig_params", "true", "--no_tpu_cluster", "--env", "A=1", "--env", "B=2"
    )
    assert getattr(found, GIVEN) == {"fsdp_version", "fsdp_use_orig_params", "tpu_use_cluster", "env"}
    assert found.env == ["A=1", "B=2"]
    assert found.tpu_use_cluster is False


def test_text_stays_text_where_the_interface_promises_it() -> None:
    found = parse("--fsdp_offload_params", "TRUE", "--megatron_lm_no_load_optim", "no", "--fp8_pad_inner_dim", "false")
    assert found.fsdp_offload_params == "TRUE"
    assert found.megatron_lm_no_load_optim is False
    assert found.fp8_pad_inner_dim is False


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num_processes", "two"], "'two' is not a whole number"),
        (["--mixed_precision", "b16"], "'b16' is not one of no, fp16, bf16, fp8"),
        (["--fsdp_offload_params", "maybe"], "'maybe' is not a truth value"),
        (["--fp8_override_linear_precision", "true,false"], "is not three truth values"),
        (["--num_machines", "4:2"], "'4:2' is not a number of machines"),
        (["--num_proc", "2"], "unrecognized arguments|required"),
    ],
)
def test_wrong_values_are_named(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    import re

    with pytest.raises(SystemExit) as stopped:
        parse(*words)
    assert stopped.value.code == 2
    assert re.search(message, capsys.readouterr().err)


def test_choices_are_taken_in_any_case() -> None:
    assert parse("--mixed_precision", "BF16").mixed_precision == "bf16"
    assert parse("--fsdp_auto_wrap_policy", "transformer_auto_wrap").fsdp_auto_wrap_policy == "TRANSFORMER_BASED_WRAP"


def test_help_is_grouped_and_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = build_launch_parser().format_help()
    for title in ("Strategy:", "Processes:", "Machines:", "DeepSpeed:", "Megatron-LM:", "Script:", "fp8:", "TPU:"):
        assert f"\n{title}\n" in text
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "--num_processes N" in text
    assert "--num-processes" not in text


def test_suppressed_flags_work_without_standing_in_the_help() -> None:
    parser = build_launch_parser(argparse.ArgumentParser("x"), suppress=True)
    assert "--num_processes" not in parser.format_help()
    assert parser.parse_args(["--num_processes", "2", "train.py"]).num_processes == 2


def test_works_below_another_parser() -> None:
    outer = argparse.ArgumentParser()
    inner = outer.add_subparsers().add_parser("launch")
    build_launch_parser(inner)
    found = outer.parse_args(["launch", "--num_processes", "2", "train.py"])
    assert getattr(found, GIVEN) == {"num_processes"}


def test_script_may_be_left_out_where_asked_for() -> None:
    assert build_launch_parser(script_required=False).parse_args(["--cpu"]).training_script is None
