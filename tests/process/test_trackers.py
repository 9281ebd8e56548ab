"""Trackers of a job of several processes: one run, written by the main process."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from accelerate.errors import MissingPackageError, StateError
from accelerate.test_utils.world import run_world
from accelerate.tracking import BlankTracker, GeneralTracker


class Diary(GeneralTracker):
    name = "diary"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[Any] = []

    @property
    def tracker(self) -> list[Any]:
        return self.pages

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.pages.append((values, step))

    def finish(self) -> None:
        self.pages.append("finished")


def test_main_process_writes_and_the_others_pass_over() -> None:
    def job(rank: int, n: int) -> tuple[list[Any], int, bool]:
        from accelerate import Accelerator

        diary = Diary()
        accelerator = Accelerator(cpu=True, log_with=diary)
        accelerator.init_trackers("p", config={"lr": 1})
        accelerator.log({"rank": rank}, step=1)
        accelerator.get_tracker("diary", unwrap=True).append("by hand") if rank == 0 else None
        blank = isinstance(accelerator.get_tracker("diary"), BlankTracker)
        held = len(accelerator.trackers)
        accelerator.end_training()
        return diary.pages, held, blank

    main, other = run_world(job, 2, how="fork", init=False)
    assert main == ([({"rank": 0}, 1), "by hand", "finished"], 1, False)
    assert other == ([], 0, True)


def test_tensorboard_through_the_accelerator(tmp_path: Path) -> None:
    def job(rank: int, n: int) -> None:
        from accelerate import Accelerator

        warnings.simplefilter("ignore")  # the library's own deprecations
        accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=tmp_path)
        accelerator.init_trackers("digits", config={"lr": 0.1}, init_kwargs={"tensorboard": {"max_queue": 3}})
        for step in range(3):
            accelerator.log({"loss": 1.0 / (step + 1)}, step=step)
        accelerator.end_training()

    run_world(job, 2, how="fork", init=False)
    files = [path.name for path in (tmp_path / "digits").glob("events.out.tfevents.*")]
    assert 1 <= len(files) <= 2  # the scalars', and the hyper-parameters' where the library opens another
    assert (tmp_path / "digits" / "hparams.yml").read_text() == "lr: 0.1\n"


def test_missing_package_and_missing_call_are_errors() -> None:
    def job(rank: int, n: int) -> str:
        from accelerate import Accelerator

        with pytest.raises(MissingPackageError, match="'wandb'"):
            Accelerator(cpu=True, log_with="wandb")
        accelerator = Accelerator(cpu=True, log_with=Diary())
        with pytest.raises(StateError, match=r"before init_trackers\(\).*diary"):
            accelerator.log({"a": 1})
        return "said"

    assert run_world(job, 1, how="fork", init=False) == ["said"]
