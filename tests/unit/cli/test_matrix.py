"""``accelerate test --matrix``: which rows there are, and when one fails."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from accelerate.cli import test_matrix as matrix
from accelerate.cli.test import main
from accelerate.errors import ConfigError

by_name = {case.name: case for case in matrix.CASES}


def test_one_process_is_always_first() -> None:
    assert [case.name for case in matrix.chosen(["fsdp2", "ddp"])] == ["single", "ddp", "fsdp2"]
    assert len(matrix.chosen([])) == len(matrix.CASES) >= 13
    with pytest.raises(ConfigError, match="--only ddq: there is no such strategy"):
        matrix.chosen(["ddq"])


def test_the_difference_of_losses() -> None:
    assert matrix.difference([1.0, 2.0], [1.0, 2.5]) == 0.5
    assert matrix.difference([1.0], [1.0, 2.0]) == matrix.difference([], []) == math.inf
    assert matrix.difference([math.nan], [1.0]) == math.inf


def _pretend(monkeypatch: pytest.MonkeyPatch, losses: dict[str, tuple[float, ...]]) -> None:
    def run(case: matrix.Case, on_cpu: bool) -> matrix.Row:
        if case.name not in losses:
            return matrix.Row(case=case, state="failed", why="it fell over")
        return matrix.Row(case=case, losses=losses[case.name], seconds=1.0, peak=2**20, whole=2.0)

    monkeypatch.setattr(matrix, "_run", run)


def test_a_row_that_differs_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[Any]) -> None:
    _pretend(monkeypatch, {"single": (2.0, 1.0), "ddp": (2.0, 1.00002), "ddp-bf16": (2.01, 1.0)})
    assert main(["--matrix", "--json", "--only", "ddp", "fsdp2", "ddp-bf16"]) == 1
    said = capsys.readouterr()
    states = {row["strategy"]: row["state"] for row in json.loads(said.out)}
    assert states == {"single": "ok", "ddp": "failed", "fsdp2": "failed", "ddp-bf16": "ok"}
    assert "fsdp2: it fell over" in said.err and "ddp: a loss is 2e-05 from that of one process" in said.err
    assert said.err.endswith("2 of 4 failed.\n")


def test_what_is_not_installed_is_absent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[Any]) -> None:
    _pretend(monkeypatch, {"single": (1.0,)})
    monkeypatch.setattr("accelerate.optional.available", lambda name: False)
    assert main(["--matrix", "--only", "deepspeed-2"]) == 0
    assert "absent" in capsys.readouterr().out


def test_flags_that_do_not_go_together(capsys: pytest.CaptureFixture[Any]) -> None:
    assert main(["--matrix", "--num_processes", "2"]) == 1
    assert "--matrix was asked for together with --num_processes 2" in capsys.readouterr().err
    assert main(["--only", "ddp"]) == 1
    assert "without --matrix" in capsys.readouterr().err


def test_the_live_table_of_the_self_check() -> None:
    from accelerate.cli.test import PARTS, _parts

    def states(done: dict[str, str], code: int | None) -> list[str]:
        return [str(cell) for cell in _parts(done, code).columns[1].cells]

    assert states({}, None) == ["[yellow]running[/yellow]", *["[dim]waiting[/dim]"] * 4]
    assert states({"processes": "2"}, 1)[:2] == ["[green]ok[/green]", "[bold red]failed[/bold red]"]
    assert states(dict.fromkeys(PARTS, ""), 0) == ["[green]ok[/green]"] * 5
