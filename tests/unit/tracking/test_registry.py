"""Which trackers a script gets, and what it is told when it cannot have one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accelerate import optional
from accelerate.config.enums import LoggerType
from accelerate.errors import ConfigError, MissingPackageError
from accelerate.tracking import (
    GeneralTracker,
    TensorBoardTracker,
    filter_trackers,
    get_available_trackers,
    on_main_process,
    register_tracker_class,
    registry,
    tracker_class,
)


class Diary(GeneralTracker):
    name = "diary"
    requires_logging_directory = False

    def __init__(self, run_name: str = "", **kwargs: Any) -> None:
        super().__init__()
        self.pages: list[Any] = [run_name, kwargs]

    @property
    def tracker(self) -> list[Any]:
        return self.pages


@pytest.fixture(autouse=True)
def own_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_registered", {})
    registry._entries.cache_clear()
    optional.forget()
    yield
    registry._entries.cache_clear()
    optional.forget()


def test_nothing_asked_for() -> None:
    assert filter_trackers(None) == []
    assert filter_trackers([]) == []


def test_missing_package_is_named() -> None:
    for asked in ("wandb", LoggerType.WANDB, ["tensorboard", "wandb"]):
        with pytest.raises(MissingPackageError, match="'wandb'.*pip install wandb"):
            filter_trackers(asked, "logs")


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(ValueError, match="'tensorbord' is not known.*tensorboard"):
        filter_trackers("tensorbord")


def test_folder_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="'tensorboard' writes into a folder.*project_dir"):
        filter_trackers("tensorboard")
    assert filter_trackers("TensorBoard", "logs") == ["tensorboard"]


def test_objects_and_names_together() -> None:
    diary = Diary()
    assert filter_trackers([diary, "tensorboard", "tensorboard"], "logs") == [diary, "tensorboard"]
    assert filter_trackers(diary) == [diary]


def test_all_is_what_is_installed_and_can_run() -> None:
    assert "tensorboard" in filter_trackers("all", "logs")
    assert "wandb" not in filter_trackers("all", "logs")
    assert "tensorboard" not in filter_trackers(LoggerType.ALL)
    diary = Diary()
    register_tracker_class(Diary)
    assert filter_trackers([diary, "all"]) == [diary]


def test_registered_class_is_found_by_name_and_by_class() -> None:
    register_tracker_class(Diary)
    assert tracker_class("diary") is Diary
    assert "diary" in get_available_trackers()
    assert filter_trackers("diary") == ["diary"]
    assert filter_trackers(Diary) == ["diary"]


def test_class_is_registered_when_it_is_asked_for() -> None:
    assert filter_trackers([Diary]) == ["diary"]
    assert tracker_class("diary") is Diary


def test_taken_name_is_said(caplog: pytest.LogCaptureFixture) -> None:
    class Other(Diary):
        name = "wandb"

    with caplog.at_level(logging.WARNING):
        register_tracker_class(Other)
    assert "'wandb' was taken" in caplog.text
    assert tracker_class("wandb") is Other


@pytest.mark.parametrize("wrong", [int, "diary", Diary()])
def test_only_tracker_classes_are_registered(wrong: Any) -> None:
    with pytest.raises(ValueError, match="subclass of GeneralTracker"):
        register_tracker_class(wrong)


def test_anything_else_in_log_with_is_refused() -> None:
    with pytest.raises(ValueError, match="log_with has 3"):
        filter_trackers([3])  # type: ignore[list-item]


def test_entry_point_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugin_of_a_tracker.py").write_text(
        "from accelerate.tracking import GeneralTracker\n"
        "class Plugin(GeneralTracker):\n"
        "    name = 'plugin'\n    requires_logging_directory = False\n    tracker = None\n"
    )
    info = tmp_path / "plugin_of_a_tracker-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-of-a-tracker\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[accelerate.trackers]\nplugin = plugin_of_a_tracker:Plugin\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._entries.cache_clear()
    assert filter_trackers("plugin") == ["plugin"]
    assert tracker_class("plugin").__name__ == "Plugin"


def test_tracker_without_its_parts_is_refused() -> None:
    class Half(GeneralTracker):
        name = "half"

    with pytest.raises(NotImplementedError, match="Half does not define requires_logging_directory, tracker"):
        Half()


def test_names_set_on_the_object_count() -> None:
    class Late(GeneralTracker):
        requires_logging_directory = False
        tracker = None

        def __init__(self) -> None:
            self.name = "late"
            super().__init__()

    assert filter_trackers(Late())[0].name == "late"


def test_on_main_process(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counter(Diary):
        @on_main_process
        def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
            """Counts."""
            self.pages.append(values)

    class Everywhere(Counter):
        main_process_only = False

    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    one, other = Counter(), Everywhere()
    one.log({"a": 1})
    other.log({"a": 1})
    assert (len(one.pages), len(other.pages)) == (2, 3)
    assert Counter.log.__doc__ == "Counts."


def test_tensorboard_class_is_public() -> None:
    assert tracker_class("tensorboard") is TensorBoardTracker
