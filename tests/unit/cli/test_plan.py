"""``accelerate plan``: what is chosen for which memory, and that its sum is the estimate's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accelerate.cli.estimate_sizes import Shape, Workload, training
from accelerate.cli.plan import machine_of, main
from accelerate.cli.plan_choice import Choice, Machine, arithmetic, choose, considered, read_bytes
from accelerate.errors import ConfigError

# 4 million parameters: 16 MB of weights in float32, 64 MB of states.
SHAPE = Shape(parameters=4_000_000, trainable=4_000_000, largest=100_000, hidden=64, layers=10, heads=4)
WORK = Workload(batch=4, seq=128)
ACTIVATIONS = 128 * 64 * 34 * 2 * 10  # of one item, in float32


def _choose(memory: int, devices: int = 4) -> Choice:
    return choose(SHAPE, Machine(devices=devices, memory=memory), WORK)


def test_the_fastest_that_fits() -> None:
    found = _choose(200_000_000)
    assert (found.way, found.micro_batch, found.accumulation, found.recompute) == ("DDP", 4, 1, False)
    assert found.cost.total == 5 * 16_000_000 + 4 * ACTIVATIONS and found.fits


def test_smaller_parts_before_sharding() -> None:
    found = _choose(112_000_000)
    assert (found.way, found.micro_batch, found.accumulation) == ("DDP", 2, 2)


def test_sharding_where_the_states_do_not_fit() -> None:
    found = _choose(58_000_000)
    assert (found.way, found.micro_batch) == ("FSDP2, no reshard", 1)
    # Between two parts of a step FSDP keeps whole gradients.
    assert found.cost.gradients == 16_000_000
    assert found.cost.parameters == 4_000_000 and found.cost.optimizer == 8_000_000
    assert "--fsdp_reshard_after_forward" in found.flags and "false" in found.flags


def test_the_smallest_computes_again() -> None:
    found = _choose(28_000_000)
    assert (found.way, found.recompute, found.micro_batch, found.accumulation) == ("FSDP2", True, 4, 1)
    assert found.flags[-2:] == ("--fsdp_activation_checkpointing", "true")
    assert found.flags[4:7] == ("SIZE_BASED_WRAP", "--fsdp_min_num_params", "100000")
    named = choose(replace(SHAPE, blocks=("Layer",)), Machine(devices=4, memory=28_000_000), WORK)
    assert named.flags[3:5] == ("--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP")


def test_what_does_not_fit_says_so() -> None:
    found = _choose(10_000_000)
    assert not found.fits and found.way == "FSDP2"
    sums = arithmetic(SHAPE, found, Machine(devices=4, memory=10_000_000), "float32")[-1]
    assert " > 8.58 MiB (9.54 MiB less 10%)" in sums


def test_one_device_is_never_sharded() -> None:
    ways = list(considered(SHAPE, Machine(devices=1, memory=10**9), WORK))
    assert [(way.way, way.recompute, way.flags) for way in ways] == [
        ("one process", False, ()),
        ("one process", True, ()),
    ]
    assert ways[0].cost == training(SHAPE, Workload(batch=4, seq=128), "float32", ["DDP"])[0]


def test_sizes_of_memory() -> None:
    assert [read_bytes(text) for text in ("24GiB", "80GB", "512M", "1.5 GiB", "100")] == [
        24 * 2**30,
        80 * 10**9,
        512 * 2**20,
        3 * 2**29,
        100,
    ]
    for wrong in ("much", "0GiB", "-1G"):
        with pytest.raises(ConfigError, match="not a size of memory"):
            read_bytes(wrong)


def test_processes_on_the_cpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate.launch import hardware

    monkeypatch.setattr(hardware, "detect", lambda environ: hardware.NO_DEVICES)
    alone, four = machine_of(None, None), machine_of(4, None)
    assert (alone.devices, four.devices) == (1, 4)
    assert four.memory == alone.memory // 4 > 0


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[Any]) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef net():\n    return nn.Linear(1000, 1000, bias=False)\n"
    )
    name = f"{tmp_path / 'mine.py'}:net"
    assert main([name, "--devices", "2", "--memory", "1GiB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["choice"]["way"] == "DDP" and found["choice"]["cost"]["total"] == 20_000_000
    assert found["command"][:4] == ["accelerate", "launch", "--num_processes", "2"]
    assert main([name, "--devices", "2", "--memory", "1M"]) == 1
    assert "Nothing fits" in capsys.readouterr().out
