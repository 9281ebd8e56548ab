"""Completions, as a shell would ask for them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from accelerate.cli.main import COMMANDS, main

COMMAND_NAMES = [name for group in COMMANDS.values() for name in group]


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", "bash"]) == 0
    return capsys.readouterr().out


def complete(script: str, line: str, cwd: Path) -> list[str]:
    """What bash offers after ``line``, whose last word is the one begun."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    ask = (
        f'{script}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _accelerate; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(
        [shutil.which("bash") or "bash", "-c", ask], cwd=cwd, capture_output=True, text=True, timeout=20
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_commands_flags_values_and_files(script: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    assert complete(script, "accelerate ", tmp_path) == COMMAND_NAMES
    assert complete(script, "accelerate la", tmp_path) == ["launch"]
    flags = complete(script, "accelerate launch --num_p", tmp_path)
    assert flags == ["--num_processes"]
    assert complete(script, "accelerate launch --mixed_precision b", tmp_path) == ["bf16"]
    assert complete(script, "accelerate launch --cpu tr", tmp_path) == ["train.py"]
    assert complete(script, "accelerate config ex", tmp_path) == ["explain"]
    assert complete(script, "accelerate completion ", tmp_path) == ["bash", "zsh", "fish", "train.py"]


def test_zsh_takes_the_same(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out == f"autoload -U +X bashcompinit && bashcompinit\n{script}"


def test_fish_knows_every_command_and_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in COMMAND_NAMES:
        assert any(f"-f -a {name} -d " in line for line in lines)
    line = next(line for line in lines if "launch'" in line and "-l mixed_precision" in line)
    assert line.endswith("-r -f -a 'no fp16 bf16 fp8'")


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["completion", "tcsh"])
    assert "'bash', 'zsh', 'fish'" in capsys.readouterr().err
