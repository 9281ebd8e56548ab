"""``accelerate config`` and its commands, without a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from accelerate.cli import config as command
from accelerate.cli import config_basic
from accelerate.config.notice import forget_notices
from accelerate.config.resolve import resolve
from accelerate.launch.hardware import Devices


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without devices, a home of its own, and no settings in the environment."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(config_basic, "detect", lambda environ: Devices())
    forget_notices()


def default_file(tmp_path: Path) -> Path:
    return tmp_path / "home" / "accelerate" / "default_config.yaml"


def test_without_a_terminal_it_takes_the_machine_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([]) == 0
    out = capsys.readouterr().out
    assert "There is no terminal to ask questions in" in out
    assert f"Configuration written to {default_file(tmp_path)}" in out
    assert yaml.safe_load(default_file(tmp_path).read_text())["num_processes"] == 1


def test_settings_by_any_of_their_names(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    words = ["use_fsdp=true", "fsdp-version=2", "num_processes=4", "ACCELERATE_MIXED_PRECISION=bf16"]
    words += ["fsdp_config.fsdp_reshard_after_forward=8", "fsdp.activation_checkpointing=true"]
    assert command.main(["--config_file", str(path), *(part for word in words for part in ("--set", word))]) == 0
    config = resolve(None, {}, path).config
    assert (config.use_fsdp, config.num_processes, config.mixed_precision) == (True, 4, "bf16")
    assert (config.fsdp.version, config.fsdp.reshard_after_forward) == (2, 8)
    assert config.fsdp.activation_checkpointing


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("num_proceses=2", "no setting called 'num_proceses'. Did you mean num_processes?"),
        ("mixed_precision", "write it as name=value"),
        ("num_processes=two", "'two' is not a whole number"),
    ],
)
def test_wrong_settings_are_one_line(word: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--set", word]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_default_keeps_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["default", "--mixed_precision", "bf16"]) == 0
    assert yaml.safe_load(default_file(tmp_path).read_text())["mixed_precision"] == "bf16"
    assert command.main(["default"]) == 0
    assert "exists and is left as it is" in capsys.readouterr().out
    assert yaml.safe_load(default_file(tmp_path).read_text())["mixed_precision"] == "bf16"
    assert command.main(["default", "--overwrite"]) == 0
    assert yaml.safe_load(default_file(tmp_path).read_text())["mixed_precision"] == "no"


@pytest.mark.parametrize(
    ("devices", "word"),
    [
        (Devices(type="cuda", count=4), "MULTI_GPU"),
        (Devices(type="npu", count=2), "MULTI_NPU"),
        (Devices(type="xpu", count=1), "NO"),
    ],
)
def test_default_takes_every_device(
    devices: Devices, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_basic, "detect", lambda environ: devices)
    assert command.main(["default"]) == 0
    found = yaml.safe_load(default_file(tmp_path).read_text())
    assert (found["distributed_type"], found["num_processes"], found["gpu_ids"]) == (word, devices.count, "all")


def test_one_device_of_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_basic, "detect", lambda environ: Devices(type="cuda", count=4))
    assert command.main(["--set", "num_processes=1"]) == 0
    assert yaml.safe_load(default_file(tmp_path).read_text())["distributed_type"] == "NO"
    assert command.main(["--set", "cpu=true"]) == 0
    found = yaml.safe_load(default_file(tmp_path).read_text())
    assert (found["use_cpu"], "gpu_ids" in found) == (True, False)


def test_write_basic_config(tmp_path: Path) -> None:
    path = tmp_path / "basic.yaml"
    assert config_basic.write_basic_config("BF16", str(path)) == path
    assert config_basic.write_basic_config(save_location=path) is False
    assert config_basic.write_basic_config() == default_file(tmp_path)
    with pytest.raises(ValueError, match="'fp12' is not known"):
        config_basic.write_basic_config("fp12")


def test_update_rewrites_an_old_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "old.yaml"
    path.write_text("distributed_type: MULTI_CPU\nfp16: true\nipex_config:\n  ipex: true\nnum_processes: 2\n")
    assert command.main(["update", "--config_file", str(path), "--set", "num_processes=3"]) == 0
    assert "`ipex_config.ipex` is left out" in capsys.readouterr().err
    found = yaml.safe_load(path.read_text())
    assert (found["mixed_precision"], found["num_processes"], "ipex_config" in found) == ("fp16", 3, False)


def test_update_without_a_file_and_of_deepspeeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["update"]) == 1
    assert "There is no configuration" in capsys.readouterr().err
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": 8}')
    assert command.main(["update", "--config_file", str(path)]) == 1
    assert "DeepSpeed's own configuration" in capsys.readouterr().err


def test_validate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("num_processes: 2\nmixed_precision: bf16\n")
    assert command.main(["validate", str(path)]) == 0
    assert "is valid" in capsys.readouterr().out
    path.write_text("num_processes: 2\nmixed_precison: bf16\n")
    assert command.main(["validate", str(path)]) == 1
    assert "line 2: `mixed_precison` Did you mean `mixed_precision`?" in capsys.readouterr().err
    assert command.main(["validate"]) == 1


def test_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("mixed_precision: fp16\nnum_processes: 2\n")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert command.main(["explain", "--config_file", str(path), "--cpu", "train.py"]) == 0
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if line.startswith("mixed_precision"))
    assert line.split() == ["mixed_precision", "bf16", "ACCELERATE_MIXED_PRECISION", "fp16", f"({path}:1)"]
    assert "ACCELERATE_USE_CPU=true" in out
    assert "Would be started:" in out
    assert "2 processes" in out


def test_explain_as_json_with_deepspeeds_final_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"zero_optimization": {"stage": 1}, "gradient_clipping": "auto"}')
    words = ["explain", "--json", "--config_file", str(path), "--gradient_clipping", "0.5"]
    assert command.main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["gradient_clipping"] == {"value": "0.5", "from": "--gradient_clipping", "overrides": []}
    assert found["deepspeed"]["gradient_clipping"] == 0.5
    assert found["deepspeed"]["zero_optimization"] == {"stage": 1}


def test_explain_of_a_contradiction_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"zero_optimization": {"stage": 1}}')
    assert command.main(["explain", "--config_file", str(path), "--zero_stage", "2"]) == 1
    error = capsys.readouterr().err
    assert "is 1 in its configuration, and zero_stage=2 (ACCELERATE_DEEPSPEED_ZERO_STAGE)" in error


def test_explain_with_nothing_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["explain"]) == 0
    assert "every setting has its default" in capsys.readouterr().out


def test_parser_below_another_one() -> None:
    import argparse

    outer = argparse.ArgumentParser()
    command.config_parser(outer.add_subparsers())
    found = outer.parse_args(["config", "default", "--mixed_precision", "fp16"])
    assert found.func is command.config_command
    assert (found.command, found.mixed_precision) == ("default", "fp16")
