"""TensorBoard."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from accelerate.tracking.base import GeneralTracker, numbers, on_main_process

__all__ = ["TensorBoardTracker"]


class TensorBoardTracker(GeneralTracker):
    """Writes event files into ``<logging_dir>/<run_name>``. Keywords go to ``SummaryWriter``."""

    name = "tensorboard"
    requires_logging_directory = True

    def __init__(self, run_name: str, logging_dir: str | os.PathLike[str], **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self.logging_dir = Path(logging_dir) / run_name
        self.init_kwargs = kwargs
        self.writer: Any = None

    @on_main_process
    def start(self) -> None:
        try:
            library = import_module("torch.utils.tensorboard")
        except ImportError:
            library = import_module("tensorboardX")
        # Shown soon, without waiting for the disk at every step.
        self.writer = library.SummaryWriter(str(self.logging_dir), **{"flush_secs": 10, **self.init_kwargs})

    @property
    def tracker(self) -> Any:
        """The ``SummaryWriter``; None on other processes."""
        return self.writer

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Stores hyper-parameters for the HPARAMS page, and in ``hparams.yml``."""
        import yaml

        plain = {name: _plain(value) for name, value in numbers(values).items()}
        self.writer.add_hparams(plain, metric_dict={}, run_name=".")
        self.writer.flush()
        (self.logging_dir / "hparams.yml").write_text(yaml.safe_dump(plain, sort_keys=True))

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Logs numbers as scalars, texts as text, and dictionaries of numbers as one chart of several lines."""
        for name, value in numbers(values).items():
            if isinstance(value, (int, float)):
                self.writer.add_scalar(name, value, global_step=step, **kwargs)
            elif isinstance(value, str):
                self.writer.add_text(name, value, global_step=step, **kwargs)
            elif isinstance(value, dict):
                self.writer.add_scalars(name, value, global_step=step, **kwargs)

    @on_main_process
    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Logs batches of images; keywords (such as ``dataformats``) go to ``add_images``."""
        for name, images in values.items():
            self.writer.add_images(name, images, global_step=step, **kwargs)

    @on_main_process
    def finish(self) -> None:
        self.writer.close()


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, bool)) else str(value)
