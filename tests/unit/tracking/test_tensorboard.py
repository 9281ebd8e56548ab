"""What TensorBoard reads back is what was logged."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from accelerate.tracking import TensorBoardTracker


def events(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    found = EventAccumulator(str(folder))
    found.Reload()
    return found


@pytest.fixture
def tracker(tmp_path: Path) -> TensorBoardTracker:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own deprecations
        tracker = TensorBoardTracker("run", tmp_path, max_queue=5)
        tracker.start()
    return tracker


def test_scalars_text_and_groups(tracker: TensorBoardTracker, tmp_path: Path) -> None:
    tracker.log({"loss": torch.tensor(0.5), "step_time": 2, "note": "warm", "ignored": [1]}, step=3)
    tracker.log({"loss": 0.25, "split": {"train": 1.0, "test": 2.0}}, step=4)
    tracker.finish()
    found = events(tmp_path / "run")
    assert [(event.step, event.value) for event in found.Scalars("loss")] == [(3, 0.5), (4, 0.25)]
    assert found.Scalars("step_time")[0].value == 2.0
    assert "note/text_summary" in found.Tags()["tensors"]
    assert "ignored" not in str(found.Tags())
    groups = {path.name: events(path).Scalars("split")[0].value for path in (tmp_path / "run").glob("split_*")}
    assert groups == {"split_train": 1.0, "split_test": 2.0}


def test_hyper_parameters(tracker: TensorBoardTracker, tmp_path: Path) -> None:
    tracker.store_init_configuration(
        {"lr": 0.1, "layers": [1, 2], "name": "n", "big": True, "decay": torch.tensor(0.5)}
    )
    tracker.finish()
    stored = yaml.safe_load((tmp_path / "run" / "hparams.yml").read_text())
    assert stored == {"lr": 0.1, "layers": "[1, 2]", "name": "n", "big": True, "decay": 0.5}
    assert "_hparams_/session_start_info" in str(events(tmp_path / "run").summary_metadata)
    assert [path.name for path in (tmp_path / "run").iterdir() if path.is_dir()] == []


def test_images(tracker: TensorBoardTracker, tmp_path: Path) -> None:
    tracker.log_images({"digits": torch.rand(2, 3, 4, 4)}, step=1)
    tracker.log_images({"last": torch.rand(2, 4, 4, 3)}, step=1, dataformats="NHWC")
    tracker.finish()
    assert {tag.split("/")[0] for tag in events(tmp_path / "run").Tags()["images"]} == {"digits", "last"}


def test_writer_is_the_tracker_and_gets_the_keywords(tracker: TensorBoardTracker) -> None:
    assert tracker.tracker is tracker.writer
    assert (tracker.writer.max_queue, tracker.writer.flush_secs) == (5, 10)
    tracker.finish()
