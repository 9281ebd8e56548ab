"""The gcloud command of ``accelerate tpu-config``; where it is run, another program stands for gcloud."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from accelerate.cli.tpu import main

YAML = "tpu_name: pod\ntpu_zone: us-a\ncommands:\n- echo one\n- echo 'two words'\n"
WHERE = ["--tpu_name", "pod", "--tpu_zone", "us-a"]


def shown(capsys: pytest.CaptureFixture[str], words: list[str]) -> list[str]:
    assert main([*words, "--debug"]) == 0
    return shlex.split(capsys.readouterr().out)


def test_the_file_says_where_and_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(YAML)
    start = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "pod", "--zone", "us-a", "--worker", "all", "--command"]
    assert shown(capsys, ["--config_file", str(file)]) == [*start, "echo one && echo 'two words'"]
    words = ["--config_file", str(file), "--use_alpha", "--command", "ls", "--command", "rm", "a b"]
    assert shown(capsys, words) == ["gcloud", "alpha", *start[1:], "ls && rm 'a b'"]


def test_a_file_of_commands_and_an_installation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "commands"
    file.write_text("# first\nls\n\ndf -h\n")
    words = [*WHERE, "--command_file", str(file), "--install_accelerate", "--accelerate_version", "1.15.0"]
    assert shown(capsys, words)[-1] == "pip install --upgrade accelerate==1.15.0 && ls && df -h"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tpu_name", "pod", "--command", "ls"], "--tpu_zone"),
        (WHERE, "No command for TPU 'pod'"),
        ([*WHERE, "--command_file", "nowhere.txt"], "'nowhere.txt'"),
    ],
)
def test_what_is_missing_is_named(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--debug"]) == 1
    assert says in capsys.readouterr().err


def test_the_code_of_gcloud_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([*WHERE, "--command", "ls"]) == 1
    program = tmp_path / "gcloud"
    program.write_text(f'#!/bin/sh\nprintf "%s|" "$@" > {tmp_path}/seen\nexit 7\n')
    program.chmod(0o755)
    assert main([*WHERE, "--command", "ls"]) == 7
    assert (tmp_path / "seen").read_text() == "compute|tpus|tpu-vm|ssh|pod|--zone|us-a|--worker|all|--command|ls|"
