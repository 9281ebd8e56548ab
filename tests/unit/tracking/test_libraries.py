"""What each tracker calls in its library. The libraries are stand-ins that write down every call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from accelerate.errors import ConfigError, EnvironmentValueError
from accelerate.tracking.aim import AimTracker
from accelerate.tracking.clearml import ClearMLTracker
from accelerate.tracking.comet_ml import CometMLTracker
from accelerate.tracking.dvclive import DVCLiveTracker
from accelerate.tracking.mlflow import MLflowTracker
from accelerate.tracking.swanlab import SwanLabTracker
from accelerate.tracking.trackio import TrackioTracker
from accelerate.tracking.wandb import WandBTracker


class Spy:
    """Any attribute is a spy too; calls and assignments are written down under their dotted name."""

    def __init__(self, calls: list[Any], path: str = "") -> None:
        self.__dict__.update(calls=calls, path=path)

    def __getattr__(self, name: str) -> Any:
        child = Spy(self.calls, f"{self.path}.{name}".strip("."))
        self.__dict__[name] = child
        return child

    def __setattr__(self, name: str, value: Any) -> None:
        self.calls.append((f"{self.path}.{name} =", value))
        self.__dict__[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        self.calls.append((f"{self.path}[{name}] =", value))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((self.path, *args, kwargs) if kwargs else (self.path, *args))
        return Spy(self.calls, f"{self.path}()")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spy) and other.path == self.path

    __hash__ = None  # type: ignore[assignment]


Library = Callable[[str], list[Any]]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    def stand_in(name: str) -> list[Any]:
        calls: list[Any] = []
        module = ModuleType(name)
        spy = Spy(calls)
        module.__getattr__ = lambda attribute: getattr(spy, attribute)  # type: ignore[method-assign]
        monkeypatch.setitem(sys.modules, name, module)
        return calls

    return stand_in


@pytest.mark.parametrize(
    ("kind", "name"), [(WandBTracker, "wandb"), (SwanLabTracker, "swanlab"), (TrackioTracker, "trackio")]
)
def test_run_with_a_project(library: Library, kind: Any, name: str) -> None:
    calls = library(name)
    tracker = kind("digits", tags=["a"])
    assert calls == []  # the run begins with start()
    tracker.start()
    tracker.log({"loss": 1.0}, step=2, commit=False)
    tracker.finish()
    assert calls == [
        ("init", {"project": "digits", "tags": ["a"]}),
        ("init().log", {"loss": 1.0}, {"step": 2, "commit": False}),
        ("init().finish",),
    ]
    assert tracker.tracker == Spy([], "init()")
    assert (tracker.name, tracker.requires_logging_directory, tracker.main_process_only) == (name, False, False)


def test_wandb_configuration_images_and_table(library: Library) -> None:
    calls = library("wandb")
    tracker = WandBTracker("digits")
    tracker.start()
    del calls[:]
    tracker.store_init_configuration({"lr": 0.1})
    tracker.log_images({"x": ["one", "two"]}, step=1, caption="c")
    tracker.log_table("t", columns=["a"], data=[[1]], step=4)
    image, table = Spy([], "Image()"), Spy([], "Table()")
    assert calls == [
        ("init().config.update", {"lr": 0.1}, {"allow_val_change": True}),
        ("Image", "one", {"caption": "c"}),
        ("Image", "two", {"caption": "c"}),
        ("init().log", {"x": [image, image]}, {"step": 1}),
        ("Table", {"columns": ["a"], "data": [[1]], "dataframe": None}),
        ("init().log", {"t": table}, {"step": 4}),
    ]


def test_swanlab_configuration_and_images(library: Library) -> None:
    calls = library("swanlab")
    tracker = SwanLabTracker("digits")
    tracker.start()
    tracker.store_init_configuration({"lr": 0.1})
    tracker.log_images({"x": ["one"]}, step=1)
    assert calls[1:] == [
        ("config.update", {"lr": 0.1}, {"allow_val_change": True}),
        ("Image", "one"),
        ("init().log", {"x": [Spy([], "Image()")]}, {"step": 1}),
    ]


def test_trackio_configuration(library: Library) -> None:
    calls = library("trackio")
    tracker = TrackioTracker("digits")
    tracker.start()
    tracker.store_init_configuration({"lr": 0.1})
    assert calls[1:] == [("init().config.update", {"lr": 0.1})]


def test_comet(library: Library) -> None:
    calls = library("comet_ml")
    tracker = CometMLTracker("digits", online=False)
    tracker.start()
    tracker.store_init_configuration({"lr": 0.1})
    tracker.log({"loss": torch.tensor(1.5), "note": "n", "split": {"a": 1}}, step=2)
    tracker.log({"loss": 1})
    tracker.finish()
    assert calls == [
        ("start", {"project_name": "digits", "online": False}),
        ("start().log_parameters", {"lr": 0.1}),
        ("start().set_step", 2),
        ("start().log_metric", "loss", 1.5, {"step": 2}),
        ("start().log_other", "note", "n"),
        ("start().log_metrics", {"a": 1}, {"step": 2}),
        ("start().log_metric", "loss", 1, {"step": None}),
        ("start().end",),
    ]


def test_aim(library: Library) -> None:
    calls = library("aim")
    tracker = AimTracker("digits", "logs", experiment="e")
    tracker.start()
    tracker.store_init_configuration({"lr": 0.1})
    tracker.log({"loss": torch.tensor([2.0])}, step=1, context={"subset": "train"})
    tracker.log_images(
        {"x": "one", "y": ("two", "cap")}, step=1, kwargs={"aim_image": {"format": "png"}, "track": {"epoch": 3}}
    )
    tracker.finish()
    image = Spy([], "Image()")
    assert calls == [
        ("Run", {"repo": "logs", "experiment": "e"}),
        ("Run().name =", "digits"),
        ("Run()[hparams] =", {"lr": 0.1}),
        ("Run().track", 2.0, {"name": "loss", "step": 1, "context": {"subset": "train"}}),
        ("Image", "one", {"caption": "", "format": "png"}),
        ("Run().track", image, {"name": "x", "step": 1, "epoch": 3}),
        ("Image", "two", {"caption": "cap", "format": "png"}),
        ("Run().track", image, {"name": "y", "step": 1, "epoch": 3}),
        ("Run().close",),
    ]


def mlflow_calls(library: Library, longest: int = 500) -> list[Any]:
    calls = library("mlflow")
    sys.modules["mlflow"].utils.validation.__dict__["MAX_PARAM_VAL_LENGTH"] = longest
    return calls


def test_mlflow_run(library: Library) -> None:
    calls = mlflow_calls(library)
    tracker = MLflowTracker("exp", logging_dir="here", tags='{"team": "a"}', run_name="r", nested_run=True)
    tracker.start()
    tracker.finish()
    experiment = Spy([], "set_experiment().experiment_id")
    assert calls == [
        ("set_tracking_uri", "here"),
        ("set_experiment", "exp"),
        (
            "start_run",
            {
                "run_id": None,
                "experiment_id": experiment,
                "run_name": "r",
                "nested": True,
                "tags": {"team": "a"},
                "description": None,
            },
        ),
        ("end_run",),
    ]
    assert tracker.tracker == Spy([], "start_run()")


def test_mlflow_variables_win(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = mlflow_calls(library)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "other")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://there")
    monkeypatch.setenv("MLFLOW_RUN_ID", "7")
    monkeypatch.setenv("MLFLOW_NESTED_RUN", "1")
    MLflowTracker("exp", logging_dir="here").start()
    assert calls[0] == ("set_experiment", "other")
    assert (calls[1][1]["run_id"], calls[1][1]["nested"]) == ("7", True)
    monkeypatch.setenv("MLFLOW_TAGS", "not json")
    with pytest.raises(EnvironmentValueError, match="not json"):
        MLflowTracker("exp")


def test_mlflow_parameters_go_in_parts_and_long_ones_are_said(
    library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    calls = mlflow_calls(library, longest=5)
    values = {f"p{i}": i for i in range(150)} | {"long": "abcdef"}
    MLflowTracker("exp").store_init_configuration(values)
    assert [len(call[1]) for call in calls] == [100, 50]
    assert "up to 5 characters" in caplog.text and "long" in caplog.text


def test_mlflow_metrics_are_numbers(library: Library, caplog: pytest.LogCaptureFixture) -> None:
    calls = mlflow_calls(library)
    MLflowTracker("exp").log({"loss": torch.tensor(0.5), "note_for_mlflow": "x"}, step=2)
    assert calls == [("log_metrics", {"loss": 0.5}, {"step": 2})]
    assert "'note_for_mlflow' (str)" in caplog.text


def test_mlflow_artifacts(library: Library) -> None:
    calls = mlflow_calls(library)
    tracker = MLflowTracker("exp")
    tracker.log_figure("fig", "f.png", dpi=10)
    tracker.log_artifact("a", "p")
    tracker.log_artifacts("d")
    assert calls == [
        ("log_figure", {"figure": "fig", "artifact_file": "f.png", "save_kwargs": {"dpi": 10}}),
        ("log_artifact", {"local_path": "a", "artifact_path": "p"}),
        ("log_artifacts", {"local_dir": "d", "artifact_path": None}),
    ]


def test_clearml_own_task(library: Library) -> None:
    calls = library("clearml")
    sys.modules["clearml"].Task.__dict__["current_task"] = lambda: None
    tracker = ClearMLTracker("digits", task_name="t")
    tracker.start()
    tracker.store_init_configuration({"lr": 0.1})
    tracker.log({"eval_loss": 1.0, "train/acc": 2, "plain": torch.tensor(3.0), "text": "x"}, step=5)
    tracker.log({"best": 9})
    tracker.finish()
    scalar = "Task.init().get_logger().report_scalar"
    assert [call for call in calls if call[0] != "Task.init().get_logger"] == [
        ("Task.init", {"project_name": "digits", "task_name": "t"}),
        ("Task.init().connect_configuration", {"lr": 0.1}),
        (scalar, {"title": "loss", "series": "eval", "value": 1.0, "iteration": 5}),
        (scalar, {"title": "acc", "series": "train", "value": 2, "iteration": 5}),
        (scalar, {"title": "plain", "series": "train", "value": 3.0, "iteration": 5}),
        ("Task.init().get_logger().report_single_value", {"name": "best", "value": 9}),
        ("Task.init().close",),
    ]


def test_clearml_task_under_way_is_used_and_left_open(library: Library) -> None:
    calls = library("clearml")
    tracker = ClearMLTracker("digits")
    tracker.start()
    tracker.log_table("t", columns=["a"], data=[[1]], step=1)
    tracker.log_images({"x": "one"}, step=1)
    with pytest.raises(ValueError, match="'t' has no content"):
        tracker.log_table("t")
    tracker.finish()
    names = [call[0] for call in calls]
    assert names[0] == "Task.current_task"
    assert "Task.init" not in names and not any(name.endswith(".close") for name in names)
    assert calls[2][1] == {"title": "t", "series": "train", "table_plot": [["a"], [1]], "iteration": 1}
    assert calls[4][1] == {"title": "x", "series": "train", "iteration": 1, "image": "one"}


def test_dvclive(library: Library) -> None:
    calls = library("dvclive")
    tracker = DVCLiveTracker(dir="d")
    tracker.start()
    tracker.store_init_configuration({"lr": 0.1})
    tracker.log({"loss": torch.tensor(1.0)}, step=4, plot=False)
    with pytest.raises(ConfigError, match="'bad' is a list"):
        tracker.log({"bad": [1]})
    tracker.finish()
    assert calls == [
        ("Live", {"dir": "d"}),
        ("Live().log_params", {"lr": 0.1}),
        ("Live().step =", 4),
        ("Live().log_metric", "loss", 1.0, {"plot": False}),
        ("Live().next_step",),
        ("Live().end",),
    ]


def test_dvclive_of_the_user(library: Library) -> None:
    calls = library("dvclive")
    mine = Spy([], "mine")
    tracker = DVCLiveTracker("ignored", live=mine)
    tracker.start()
    assert tracker.tracker is mine
    assert calls == []
