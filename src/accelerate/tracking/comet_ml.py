"""Comet."""

from __future__ import annotations

from typing import Any

from accelerate.tracking.base import GeneralTracker, numbers, on_main_process

__all__ = ["CometMLTracker"]


class CometMLTracker(GeneralTracker):
    """Logs to the project ``run_name``. Keywords go to ``comet_ml.start``; the API key is Comet's own setting."""

    name = "comet_ml"
    requires_logging_directory = False

    def __init__(self, run_name: str, **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self.init_kwargs = kwargs
        self.writer: Any = None

    @on_main_process
    def start(self) -> None:
        import comet_ml

        self.writer = comet_ml.start(project_name=self.run_name, **self.init_kwargs)

    @property
    def tracker(self) -> Any:
        """The Comet experiment."""
        return self.writer

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.writer.log_parameters(values)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Logs numbers and dictionaries of numbers as metrics, and everything else as "other"."""
        if step is not None:
            self.writer.set_step(step)
        for name, value in numbers(values).items():
            if isinstance(value, (int, float)):
                self.writer.log_metric(name, value, step=step, **kwargs)
            elif isinstance(value, dict):
                self.writer.log_metrics(value, step=step, **kwargs)
            else:
                self.writer.log_other(name, value, **kwargs)

    @on_main_process
    def finish(self) -> None:
        self.writer.end()
