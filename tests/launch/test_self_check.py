"""``accelerate test``: the installed self-check, as the configuration says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from accelerate.test_utils.scripts import self_check
from launching import ACCELERATE, Launch

PARTS = ("processes", "collectives", "loading", "training", "saving")


@pytest.mark.timeout(150)
def test_it_runs_as_the_file_says(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n")
    done = launch("--config_file", "c.yaml", command=(ACCELERATE, "test"))
    assert done.code == 0, done.screen
    lines = done.screen.splitlines()
    assert [line.split()[0] for line in lines if line.startswith(PARTS)] == list(PARTS)
    assert "processes    2 processes on cpu, MULTI_CPU" in lines
    assert any(line.startswith("training") and line.endswith("as in one process") for line in lines)
    assert lines[-1] == "accelerate test: everything that was checked works."


def test_it_fails_where_a_launch_would(launch: Launch, tmp_path: Path) -> None:
    done = launch("--num_processes", "0", command=(ACCELERATE, "test"))
    assert done.code == 1
    assert done.screen == ("accelerate test: --num_processes 0 was asked for. A job has at least one process.\n")


def test_a_part_that_does_not_hold_fails(fresh_state: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate import Accelerator

    monkeypatch.setattr(Accelerator, "gather", lambda self, tensor: tensor + 1)
    with pytest.raises(AssertionError, match="gather: values are 1 apart"):
        self_check._collectives(Accelerator(cpu=True))


def test_a_loader_that_loses_an_item_fails(fresh_state: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate import Accelerator

    monkeypatch.setattr(Accelerator, "gather_for_metrics", lambda self, tensor: tensor[1:])
    with pytest.raises(AssertionError, match="items of an epoch"):
        self_check._loading(Accelerator(cpu=True))


def test_a_training_that_differs_fails(fresh_state: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate import Accelerator

    plain = Accelerator.backward
    monkeypatch.setattr(Accelerator, "backward", lambda self, loss, **words: plain(self, loss * 2, **words))
    with pytest.raises(AssertionError, match="losses: values are"):
        self_check._training(Accelerator(cpu=True))


@pytest.mark.timeout(150)
def test_strategies_agree_with_one_process(launch: Launch) -> None:
    done = launch("--matrix", "--json", "--only", "fsdp2", command=(ACCELERATE, "test"))
    assert done.code == 0, done.screen
    rows = json.loads(done.screen[done.screen.index("[\n") : done.screen.index("\n]") + 2])
    assert [(row["strategy"], row["state"], row["processes"]) for row in rows] == [
        ("single", "ok", 1),
        ("fsdp2", "ok", 2),
    ]
    assert rows[0]["losses"][0] != rows[0]["losses"][-1]
    assert 0 <= rows[1]["apart"] <= 1e-5
    assert all(row["peak"] > 2**20 and 0 < row["seconds"] < row["whole"] for row in rows)
