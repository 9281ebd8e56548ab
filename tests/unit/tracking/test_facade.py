"""Trackers through the calls of the Accelerator."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from accelerate.accelerator.trackers import TrackingMixin
from accelerate.errors import StateError
from accelerate.tracking import GeneralTracker, registry


class Diary(GeneralTracker):
    name = "diary"
    requires_logging_directory = True

    def __init__(self, run_name: str, logging_dir: Any = None, **kwargs: Any) -> None:
        super().__init__()
        self.pages: list[Any] = [("made", run_name, logging_dir, kwargs)]

    @property
    def tracker(self) -> list[Any]:
        return self.pages

    def start(self) -> None:
        self.pages.append(("start",))

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.pages.append(("config", values))

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.pages.append(("log", values, step, kwargs))

    def finish(self) -> None:
        self.pages.append(("finish",))


class Session(TrackingMixin):
    """As much of the façade as trackers need."""

    def __init__(self, log_with: list[Any], main: bool = True) -> None:
        self.log_with, self.is_main_process = log_with, main
        self.trackers: list[Any] = []
        self.project_configuration = SimpleNamespace(logging_dir="logs")


@pytest.fixture(autouse=True)
def own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {"diary": Diary})


def test_life_of_a_tracker_by_name() -> None:
    session: Any = Session(["diary"])
    session.init_trackers("p", config={"lr": 1}, init_kwargs={"diary": {"tag": "t"}, "other": {"x": 1}})
    session.log({"loss": 2.0}, step=3, log_kwargs={"diary": {"flag": True}, "other": {"y": 1}})
    session._finish_trackers()
    assert session.get_tracker("diary", unwrap=True) == [
        ("made", "p", "logs", {"tag": "t"}),
        ("start",),
        ("config", {"lr": 1}),
        ("log", {"loss": 2.0}, 3, {"flag": True}),
        ("finish",),
    ]
    assert isinstance(session.get_tracker("diary"), Diary)


def test_folder_of_the_user_wins() -> None:
    session: Any = Session(["diary"])
    session.init_trackers("p", init_kwargs={"diary": {"logging_dir": "mine"}})
    assert session.trackers[0].pages[0] == ("made", "p", "mine", {})


def test_object_is_used_as_it_is() -> None:
    mine = Diary("own")
    session: Any = Session([mine])
    session.init_trackers("p")
    assert session.get_tracker("diary") is mine
    assert mine.pages == [("made", "own", None, {}), ("start",)]


def test_log_before_init_trackers_is_an_error_that_names_them() -> None:
    session: Any = Session(["diary", Diary("x")])
    with pytest.raises(StateError, match=r"before init_trackers\(\).*diary, diary"):
        session.log({"a": 1})


def test_log_without_any_tracker_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    from accelerate.accelerator import trackers

    trackers.logger._said.clear()
    session: Any = Session([])
    with caplog.at_level(logging.WARNING):
        session.log({"a": 1})
        session.log({"a": 2})
    assert caplog.text.count("no tracker was asked for") == 1


def test_unknown_tracker_is_named_with_the_known() -> None:
    session: Any = Session(["diary"])
    session.init_trackers("p")
    with pytest.raises(ValueError, match="'wandb' was not started; started: diary"):
        session.get_tracker("wandb")


def test_other_processes_do_nothing() -> None:
    session: Any = Session(["diary"], main=False)
    session.init_trackers("p", config={"lr": 1})
    session.log({"a": 1})
    assert session.trackers == []
    blank = session.get_tracker("diary", unwrap=True)
    assert isinstance(blank, GeneralTracker)
    assert blank.config.update({"a": 1}) is None
    assert blank.log({"a": 1}, step=2) is None
