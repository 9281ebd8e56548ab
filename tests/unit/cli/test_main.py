"""The commands' surroundings: overview, names, errors as lines."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from accelerate.cli import main as cli
from accelerate.cli.main import COMMANDS, main

ACCELERATE = str(Path(sys.executable).parent / "accelerate")


def test_the_overview_fits_80_columns_and_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for group, commands in COMMANDS.items():
        assert f"{group}:" in text
        assert all(f"  {name} " in text for name in commands)


@pytest.mark.parametrize("name", [name for group in COMMANDS.values() for name in group])
def test_every_command_explains_itself(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert f"accelerate {name}" in text
    assert max(map(len, text.splitlines())) <= 80


def test_no_help_needs_torch() -> None:
    names = [name for group in COMMANDS.values() for name in group]
    program = (
        "import contextlib, io, sys\n"
        "from accelerate.cli.main import main\n"
        f"for name in {names!r}:\n"
        "    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main([name, '--help'])\n"
        "    heavy = {'torch', 'numpy', 'transformers'} & set(sys.modules)\n"
        "    assert not heavy, (name, heavy)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=50)


def test_no_command_shows_the_overview_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    assert "launch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("lanch", "Did you mean `accelerate launch`?"),
        ("train.py", "`accelerate launch train.py`"),
        ("zzzz", "Commands are launch, "),
    ],
)
def test_an_unknown_command_gets_a_hint(word: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 2
    assert says in capsys.readouterr().err


def test_names_with_underscores_work_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["merge_weights", "a", "b"]) in (0, 1)
    assert "accelerate merge-weights" in capsys.readouterr().err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    from accelerate import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


def test_an_error_is_a_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate-memory", "./nowhere"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("accelerate estimate-memory: ") and "'./nowhere'" in said.err
    assert "Traceback" not in said.err
    assert main(["tpu-config", "--tpu_name", "pod"]) == 1
    assert "'pod'" in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    done = subprocess.run(f"{ACCELERATE} env --json | head -1", shell=True, capture_output=True, text=True, timeout=50)
    assert (done.stdout, done.stderr) == ("{\n", "")


def test_the_overview_needs_no_other_module() -> None:
    probe = "import sys; from accelerate.cli.main import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=50)
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert not loaded & {"torch", "yaml", "argparse", "rich", "numpy"}


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("launch", ["launch_command", "launch_command_parser", "main"]),
        ("accelerate_cli", ["main"]),
        ("env", ["env_command", "env_command_parser", "main"]),
        ("test", ["test_command", "test_command_parser", "main"]),
        ("estimate", ["create_empty_model", "estimate_command", "estimate_command_parser", "gather_data", "main"]),
        ("merge", ["merge_command", "merge_command_parser", "main"]),
        ("tpu", ["tpu_command_launcher", "tpu_command_parser", "main"]),
        ("to_fsdp2", ["to_fsdp2_command", "to_fsdp2_command_parser", "main"]),
    ],
)
def test_the_old_paths_hold_the_same_objects(module: str, names: list[str]) -> None:
    old = importlib.import_module(f"accelerate.commands.{module}")
    assert sorted(old.__all__) == sorted(names)
    for name in names:
        home = importlib.import_module(getattr(old, name).__module__)
        assert home.__name__.startswith("accelerate.cli.")


def test_a_parser_can_be_added_to_another() -> None:
    import argparse

    from accelerate.commands.env import env_command, env_command_parser
    from accelerate.commands.launch import launch_command, launch_command_parser

    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    launch_command_parser(commands)
    env_command_parser(commands)
    args = parser.parse_args(["launch", "--num_processes", "2", "train.py", "--num_processes", "7"])
    assert args.func is launch_command
    assert (args.num_processes, args.training_script_args) == (2, ["--num_processes", "7"])
    assert parser.parse_args(["env"]).func is env_command


# ---- env


def test_env_says_what_is_there_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    file = tmp_path / "c.yaml"
    file.write_text("num_processes: 3\n")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert main(["env", "--json", "--config_file", str(file)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["configuration"] == {"file": str(file), "num_processes": 3}
    assert found["packages"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert found["variables"]["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert f"{os.cpu_count()} logical" in found["machine"]["cores"]


def test_env_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    from accelerate.commands.env import env_command, env_command_parser

    found = env_command(env_command_parser().parse_args([]))
    said = capsys.readouterr().out
    assert found["accelerate"]["version"] in said and "none at" in said


def test_env_with_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "--config_file", "nowhere.yaml"]) == 1
    assert "nowhere.yaml does not exist" in capsys.readouterr().err


def test_the_table_of_commands_names_modules_that_exist() -> None:
    for module in cli._modules().values():
        assert callable(importlib.import_module(module).main)
