"""Aim."""

from __future__ import annotations

import os
from typing import Any

from accelerate.tracking.base import GeneralTracker, numbers, on_main_process

__all__ = ["AimTracker"]


class AimTracker(GeneralTracker):
    """Logs a run called ``run_name`` into the Aim repository at ``logging_dir``. Keywords go to ``aim.Run``."""

    name = "aim"
    requires_logging_directory = True

    def __init__(self, run_name: str, logging_dir: str | os.PathLike[str] | None = ".", **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self.aim_repo_path = logging_dir
        self.init_kwargs = kwargs
        self.writer: Any = None

    @on_main_process
    def start(self) -> None:
        from aim import Run

        self.writer = Run(repo=self.aim_repo_path, **self.init_kwargs)
        self.writer.name = self.run_name

    @property
    def tracker(self) -> Any:
        """The Aim run."""
        return self.writer

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.writer["hparams"] = values

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        for name, value in numbers(values).items():
            self.writer.track(value, name=name, step=step, **kwargs)

    @on_main_process
    def log_images(
        self, values: dict[str, Any], step: int | None = None, kwargs: dict[str, dict[str, Any]] | None = None
    ) -> None:
        """Logs images, each alone or with its caption as a pair. ``kwargs`` may have keywords for ``aim.Image`` under
        "aim_image" and for ``Run.track`` under "track"."""
        import aim

        given = kwargs or {}
        for name, value in values.items():
            image, caption = value if isinstance(value, tuple) else (value, "")
            picture = aim.Image(image, caption=caption, **given.get("aim_image", {}))
            self.writer.track(picture, name=name, step=step, **given.get("track", {}))

    @on_main_process
    def finish(self) -> None:
        self.writer.close()
