"""Commands and environments for programs that start the processes themselves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from accelerate.commands.launch import launch_command_parser
from accelerate.errors import NotBuiltError
from accelerate.utils import (
    prepare_deepspeed_cmd_env,
    prepare_multi_gpu_env,
    prepare_sagemager_args_inputs,
    prepare_simple_launcher_cmd_env,
    prepare_tpu,
)


def test_the_command_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMETHING", "else")
    args = launch_command_parser().parse_args(["--mixed_precision", "fp16", "-m", "train", "--lr", "1"])
    command, environment = prepare_simple_launcher_cmd_env(args)
    assert command == [sys.executable, "-m", "train", "--lr", "1"]
    assert environment["ACCELERATE_MIXED_PRECISION"] == "fp16"
    assert environment["SOMETHING"] == "else"
    args = launch_command_parser().parse_args(["--no_python", "./run.sh"])
    assert prepare_simple_launcher_cmd_env(args)[0] == ["./run.sh"]


def test_the_environment_of_several_processes() -> None:
    args = launch_command_parser().parse_args(["--use_fsdp", "--num_processes", "2", "--fsdp_version", "2", "x.py"])
    environment = prepare_multi_gpu_env(args)
    assert environment["ACCELERATE_USE_FSDP"] == "true"
    assert environment["FSDP_VERSION"] == "2"


def test_deepspeed() -> None:
    words = ["--use_deepspeed", "--zero_stage", "2", "--num_processes", "2", "train.py"]
    command, environment = prepare_deepspeed_cmd_env(launch_command_parser().parse_args(words))
    assert command == [sys.executable, "train.py"]
    assert environment["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "2"


def test_deepspeed_on_the_hosts_of_a_file(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("one slots=1\ntwo slots=1\n")
    words = [
        "--use_deepspeed",
        "--deepspeed_hostfile",
        str(hosts),
        "--num_machines",
        "2",
        "--num_processes",
        "2",
        "train.py",
    ]
    command, _ = prepare_deepspeed_cmd_env(launch_command_parser().parse_args(words))
    assert command[:3] == [sys.executable, "-m", "deepspeed.launcher.runner"]
    assert command[command.index("--hostfile") + 1] == str(hosts)
    assert command[-1] == "train.py"


@pytest.mark.parametrize(("flags", "name"), [([], "XLA_USE_BF16"), (["--downcast_bf16"], "XLA_DOWNCAST_BF16")])
def test_bf16_on_a_tpu(flags: list[str], name: str) -> None:
    args = launch_command_parser().parse_args(["--tpu", "--mixed_precision", "bf16", *flags, "x.py"])
    same, environment = prepare_tpu(args, {"A": "1"})
    assert same is args
    assert environment == {"A": "1", name: "1"}
    args.mixed_precision = "no"
    assert prepare_tpu(args, {})[1] == {}
    with pytest.raises(NotBuiltError, match="pod"):
        prepare_tpu(args, {}, pod=True)


def test_sagemaker_says_that_it_is_not_built() -> None:
    args = launch_command_parser().parse_args(["x.py"])
    with pytest.raises(NotBuiltError, match="SageMaker"):
        prepare_sagemager_args_inputs(None, args)
