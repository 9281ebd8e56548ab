"""SwanLab."""

from __future__ import annotations

from typing import Any

from accelerate.tracking.base import GeneralTracker, on_main_process

__all__ = ["SwanLabTracker"]


class SwanLabTracker(GeneralTracker):
    """Logs to the project ``run_name``. Keywords go to ``swanlab.init``."""

    name = "swanlab"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, run_name: str, **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self.init_kwargs = kwargs
        self.run: Any = None

    @on_main_process
    def start(self) -> None:
        import swanlab

        self.run = swanlab.init(project=self.run_name, **self.init_kwargs)

    @property
    def tracker(self) -> Any:
        """The SwanLab run."""
        return self.run

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        import swanlab

        swanlab.config.update(values, allow_val_change=True)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.run.log(values, step=step, **kwargs)

    @on_main_process
    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Logs lists of images; keywords (such as ``caption``) go to ``swanlab.Image``."""
        import swanlab

        for name, images in values.items():
            self.log({name: [swanlab.Image(image, **kwargs) for image in images]}, step=step)

    @on_main_process
    def finish(self) -> None:
        self.run.finish()
