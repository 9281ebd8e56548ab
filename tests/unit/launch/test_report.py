"""Which failure explains the others, how it is written, and what is on the screen."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from accelerate.launch import report
from accelerate.launch.report import Failure


def record(rank: int, time: float, text: str = "ValueError: bad") -> dict[str, object]:
    return {
        "message": {
            "message": text,
            "extraInfo": {"py_callstack": f"Traceback\n{text}\n", "timestamp": str(int(time))},
        },
        "rank": rank,
        "time": time,
    }


def raised(rank: int, time: float) -> Failure:
    return Failure(rank=rank, code=1, time=time, record=record(rank, time))


def test_the_first_error_explains_the_others() -> None:
    first = raised(3, 10.2)
    assert report.choose_root([raised(0, 10.9), first, raised(1, 11.0)]) is first


def test_a_rank_that_the_agent_ended_explains_nothing() -> None:
    error = raised(1, 12.0)
    assert report.choose_root([Failure(rank=0, code=-signal.SIGTERM, time=11.0), error]) is error


def test_a_killed_rank_explains_the_errors_of_its_peers() -> None:
    killed = Failure(rank=1, code=-signal.SIGKILL, time=11.0)
    assert report.choose_root([raised(0, 10.5), killed]) is killed


def test_a_rank_killed_for_not_stopping_explains_nothing() -> None:
    error = raised(0, 10.0)
    assert report.choose_root([error, Failure(rank=1, code=-signal.SIGKILL, time=10.0 + 30)]) is error


def test_an_exit_code_is_the_root_where_nobody_said_more() -> None:
    ended = Failure(rank=1, code=3, time=10.0)
    assert report.choose_root([Failure(rank=0, code=-signal.SIGTERM, time=10.0), ended]) is ended


def test_all_ended_by_sigterm_is_a_failure_too() -> None:
    ended = [Failure(rank=rank, code=-signal.SIGTERM, time=5.0) for rank in (1, 0)]
    assert report.choose_root(ended).rank == 0


@pytest.mark.parametrize(("code", "exit_code", "name"), [(3, 3, None), (-9, 137, "SIGKILL"), (-15, 143, "SIGTERM")])
def test_exit_codes_are_those_of_a_shell(code: int, exit_code: int, name: str | None) -> None:
    failure = Failure(rank=0, code=code)
    assert (failure.exit_code, failure.signal_name) == (exit_code, name)


def test_a_summary_holds_the_root_and_counts_the_others(tmp_path: Path) -> None:
    ended = Failure(rank=2, code=-signal.SIGTERM, time=9.0)
    root, others = report.summarise([raised(1, 8.5), raised(0, 8.0), ended], 3, str(tmp_path))
    assert root.rank == 0 and [other.rank for other in others] == [1]
    written = json.loads((tmp_path / "error.json").read_text())
    assert root.file == str(tmp_path / "error.json")
    assert written["rank"] == 0 and written["message"]["message"] == "ValueError: bad"
    assert written["others"] == [{"rank": 1, "exit_code": 1, "signal": None}]


def test_a_killed_rank_is_written_down_for_it(tmp_path: Path) -> None:
    root, _ = report.summarise([Failure(rank=1, code=-9, time=4.0)], 2, str(tmp_path))
    written = json.loads(Path(str(root.file)).read_text())
    assert written["signal"] == "SIGKILL" and "rank 1 of 2 was ended by SIGKILL" in written["message"]["message"]


def test_an_exit_code_of_its_own_needs_no_file(tmp_path: Path) -> None:
    root, _ = report.summarise([Failure(rank=0, code=3, time=4.0)], 2, str(tmp_path))
    assert root.file is None and list(tmp_path.iterdir()) == []
    root, _ = report.summarise([Failure(rank=0, code=3, time=4.0)], 2, str(tmp_path), always=True)
    assert root.file is not None


def test_the_agent_around_this_launcher_gets_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outer = tmp_path / "outer.json"
    monkeypatch.setenv(report.ERROR_FILE, str(outer))
    report.summarise([raised(0, 8.0)], 2, str(tmp_path))
    assert json.loads(outer.read_text())["rank"] == 0


def test_what_cannot_be_written_is_shown_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, _ = report.summarise([raised(0, 8.0)], 2, str(tmp_path / "missing"))
    assert root.file is None
    report.show(root, 2)
    assert capsys.readouterr().err.endswith("Traceback\nValueError: bad\n")


def test_the_traceback_is_last_and_once(capsys: pytest.CaptureFixture[str]) -> None:
    report.show(raised(1, 8.0), 4, others=2)
    said = capsys.readouterr().err
    assert "rank 1 of 4 raised an error (2 more ranks failed, shown is the first)." in said
    assert said.count("ValueError: bad") == 1 and said.endswith("ValueError: bad\n")


def test_quiet_shows_the_script_s_own_lines_only(capsys: pytest.CaptureFixture[str]) -> None:
    report.show(raised(1, 8.0), 4, quiet=True)
    assert capsys.readouterr().err == "Traceback\nValueError: bad\n"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (-9, "SIGKILL; if nobody sent it, the machine probably ran out of memory"),
        (-11, "PYTHONFAULTHANDLER=1"),
        (2, "code 2 from x.py"),
    ],
)
def test_what_to_do_is_said(code: int, says: str) -> None:
    assert says in report.account(Failure(rank=0, code=code), 1, "x.py")


def test_a_file_of_somebody_else_is_no_record(tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    for text in ("", "[1]", '{"message": "text"}', "{"):
        file.write_text(text)
        assert report.load(str(file)) is None
    assert report.load(str(tmp_path / "none.json")) is None


def test_a_record_names_rank_type_and_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    try:
        raise KeyError("missing")
    except KeyError as error:
        found = report.describe(error)
    assert (found["rank"], found["world_size"], found["local_rank"]) == (3, 8, 1)
    assert found["exception"]["type"] == "builtins.KeyError"
    assert [frame["function"] for frame in found["exception"]["frames"]] == ["test_a_record_names_rank_type_and_frames"]
    assert found["message"]["message"] == "KeyError: 'missing'"


def test_a_rank_of_mpi_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    found = report.describe(ValueError("x"))
    assert (found["rank"], found["world_size"]) == (2, 4)


def test_an_error_goes_to_the_file_that_the_launcher_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(report.ERROR_FILE, str(tmp_path / "one.json"))
    report.fail(ValueError("first"))
    assert report.load(str(tmp_path / "one.json")) is not None
    assert capsys.readouterr().err == ""
    monkeypatch.delenv(report.ERROR_FILE)
    monkeypatch.setenv(report.ERROR_FOLDER, str(tmp_path))
    monkeypatch.setenv("RANK", "5")
    report.fail(ValueError("second"))
    assert report.load(str(tmp_path / "rank_5.json")) is not None
    assert capsys.readouterr().err == ""
    monkeypatch.setenv(report.ERROR_FOLDER, str(tmp_path / "elsewhere"))
    report.fail(ValueError("third"))
    assert capsys.readouterr().err.endswith("ValueError: third\n")
