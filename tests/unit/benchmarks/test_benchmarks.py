"""The benchmark runner: turns, costs, limits, and implementations that fail."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import cases, measure
from benchmarks.cases import CASES, Row
from benchmarks.measure import Interpreter, Ran, run, take_turns

OWN = Interpreter(name="this", python=sys.executable, own=True)
OTHER = Interpreter(name="other", python=sys.executable)


def test_a_command_is_timed() -> None:
    slept = run([sys.executable, "-S", "-c", "import time; time.sleep(0.2); print('{\"a\": [1.5]}')"])
    assert 0.2 < slept.wall < 5
    assert slept.cpu < slept.wall
    assert slept.data() == {"a": [1.5]}


def test_processor_time_counts_children() -> None:
    burn = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    child = run(
        [sys.executable, "-S", "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"]
    )
    assert child.cpu >= 0.2


def test_a_command_that_fails_shows_what_it_wrote() -> None:
    with pytest.raises(RuntimeError, match=r"exited with 3:\n(.|\n)*the reason"):
        run([sys.executable, "-S", "-c", "import sys; print('the reason'); sys.exit(3)"])


def test_commands_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def fake(command: Sequence[str]) -> Ran:
        order.append(command[0])
        return Ran(wall=len(order), cpu=0.0, out="")

    monkeypatch.setattr(measure, "run", fake)
    found = take_turns({(OWN, "a"): ["a"], (OTHER, "b"): ["b"]}, repeats=2, warmup=1)
    assert order == ["a", "b"] * 3
    assert [ran.wall for ran in found[OWN]["a"]] == [3, 5]


def test_another_implementation_that_fails_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fake(command: Sequence[str]) -> Ran:
        if command[0] == "bad":
            raise RuntimeError("it\nbroke")
        return Ran(wall=1.0, cpu=1.0, out="")

    monkeypatch.setattr(measure, "run", fake)
    found = take_turns({(OWN, "x"): ["good"], (OTHER, "x"): ["good"], (OTHER, "y"): ["bad"]}, repeats=1)
    assert list(found) == [OWN]
    assert capsys.readouterr().err == "other is left out: broke\n"
    with pytest.raises(RuntimeError, match="broke"):
        take_turns({(OWN, "x"): ["bad"]}, repeats=1)


def workers(plain: list[float], prepared: list[float]) -> object:
    report = json.dumps({"plain/cpu": plain, "prepared/cpu": prepared})
    return lambda command: Ran(wall=1.0, cpu=1.0, out=f"noise\n{report}\n")


@pytest.mark.parametrize(("prepared", "cost", "holds"), [([2.0, 2.1, 9.0], 1.05, True), ([2.2, 2.4, 2.3], 1.15, False)])
def test_a_ratio_is_that_of_the_medians(
    monkeypatch: pytest.MonkeyPatch, prepared: list[float], cost: float, holds: bool
) -> None:
    monkeypatch.setattr(measure, "run", workers([1.0, 2.0, 3.0], prepared))
    [row] = CASES["loader"].measure("loader", [OWN], 1)
    assert row.cost == pytest.approx(cost)
    assert row.best == pytest.approx(min(prepared) / 1.0)
    assert row.holds is holds


def test_a_difference_is_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"pass": 0.02, "import accelerate": 0.05}
    report = json.dumps({"torch": [2.0], "both": [2.3]})
    monkeypatch.setattr(measure, "run", lambda command: Ran(wall=9.0, cpu=times.get(command[-1], 9.0), out=report))
    rows = CASES["import_time"].measure("import_time", [OWN], 2)
    assert [(round(row.cost), row.holds) for row in rows] == [(30, True), (300, False)]


def row(who: str, cost: float) -> Row:
    return Row(
        case="c", what="w", implementation=who, baseline=1.0, subject=cost, cost=cost, best=cost, limit=1.1, unit="x"
    )


@pytest.mark.parametrize(("own", "strict", "code"), [(1.2, True, 1), (1.2, False, 0), (1.0, True, 0)])
def test_the_command_line_judges_this_implementation_only(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    own: float,
    strict: bool,
    code: int,
) -> None:
    asked = []

    def fake(name: str, interpreters: list[Interpreter], repeats: int) -> list[Row]:
        asked.append((name, [who.name for who in interpreters], repeats))
        return [row("this", own), row("other", 5.0)]

    monkeypatch.setitem(command.CASES, "loader", cases.Case(name="loader", about="", measure=fake, repeats=4))
    arguments = ["loader", "--against", f"other={sys.executable}", "--json", str(tmp_path / "out.json")]
    assert command.main([*arguments, *(["--strict"] if strict else [])]) == code
    assert asked == [("loader", ["this", "other"], 4)]
    written = json.loads((tmp_path / "out.json").read_text())
    assert [(line["implementation"], line["holds"]) for line in written["rows"]] == [
        ("this", own <= 1.1),
        ("other", False),
    ]
    assert "5.000×" in capsys.readouterr().out


def test_an_unknown_case_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["lodaer"])
    assert "no case lodaer; there are loop_single" in capsys.readouterr().err
