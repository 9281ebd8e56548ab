"""DVCLive."""

from __future__ import annotations

from typing import Any

from accelerate.errors import ConfigError
from accelerate.tracking.base import GeneralTracker, numbers, on_main_process

__all__ = ["DVCLiveTracker"]


class DVCLiveTracker(GeneralTracker):
    """Logs to ``live``, or to a ``Live`` made with the keywords. DVCLive has no name for a run."""

    name = "dvclive"
    requires_logging_directory = False

    def __init__(self, run_name: str | None = None, live: Any | None = None, **kwargs: Any) -> None:
        super().__init__()
        self.live = live
        self.init_kwargs = kwargs

    @on_main_process
    def start(self) -> None:
        from dvclive import Live

        if self.live is None:
            self.live = Live(**self.init_kwargs)

    @property
    def tracker(self) -> Any:
        """The ``Live`` object."""
        return self.live

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.tracker.log_params(values)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Logs numbers and texts as metrics, and moves to the next step.

        Raises:
            ConfigError: a value is of another kind. A ValueError.
        """
        if step is not None:
            self.tracker.step = step
        for name, value in numbers(values).items():
            if not isinstance(value, (int, float, str)):
                raise ConfigError(f"DVCLive takes numbers and texts as metrics; {name!r} is a {type(value).__name__}.")
            self.tracker.log_metric(name, value, **kwargs)
        self.tracker.next_step()

    @on_main_process
    def finish(self) -> None:
        self.tracker.end()
