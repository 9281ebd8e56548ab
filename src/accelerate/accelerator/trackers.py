"""Experiment tracking through the façade."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate.errors import ConfigError, StateError
from accelerate.logging import get_logger
from accelerate.tracking import BlankTracker, GeneralTracker, tracker_class

if TYPE_CHECKING:
    from accelerate.accelerator.typing import Facade

__all__ = ["TrackingMixin"]

logger = get_logger(__name__)


class TrackingMixin:
    """Starts, feeds and ends the trackers that ``log_with`` asked for, on the main process."""

    def init_trackers(
        self: Facade,
        project_name: str,
        config: dict[str, Any] | None = None,
        init_kwargs: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        """Starts a run in every tracker of ``log_with``. Does nothing on other processes.

        Args:
            project_name: What trackers call the project, experiment or run.
            config: Hyper-parameters to store with the run.
            init_kwargs: For each tracker, by its name, keywords for its constructor.
        """
        if not self.is_main_process:
            return
        given = init_kwargs or {}
        started: list[GeneralTracker] = []
        for asked in self.log_with:
            if isinstance(asked, GeneralTracker):
                tracker = asked
            else:
                kind = tracker_class(str(asked))
                keywords = dict(given.get(str(asked), {}))
                if kind.requires_logging_directory:
                    keywords.setdefault("logging_dir", self.project_configuration.logging_dir)
                tracker = kind(project_name, **keywords)  # type: ignore[arg-type]
            tracker.start()
            started.append(tracker)
        self.trackers = started
        if config is not None:
            for tracker in started:
                tracker.store_init_configuration(config)

    def get_tracker(self: Facade, name: str, unwrap: bool = False) -> Any:
        """The tracker called ``name``; on other processes an object on which every call does nothing.

        Args:
            name: The tracker's name, as in ``log_with``.
            unwrap: Give the object of the tracking library instead.

        Raises:
            ValueError: no tracker of that name was started.
        """
        if not self.is_main_process:
            return BlankTracker()
        for tracker in self.trackers:
            if tracker.name == name:
                return tracker.tracker if unwrap else tracker
        known = ", ".join(tracker.name for tracker in self.trackers) or "none"
        raise ConfigError(
            f"Tracker {name!r} was not started; started: {known}. Name it in Accelerator(log_with=…) and call "
            "init_trackers() first."
        )

    def log(
        self: Facade,
        values: dict[str, Any],
        step: int | None = None,
        log_kwargs: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        """Logs ``values`` in every tracker. Does nothing on other processes.

        Args:
            values: Names and what they stand at: numbers, texts or dictionaries of numbers.
            step: The step they belong to.
            log_kwargs: For each tracker, by its name, keywords for its ``log``.

        Raises:
            StateError: there are trackers to start and ``init_trackers`` was not called.
        """
        if not self.is_main_process:
            return
        if not self.trackers:
            _say_why_nothing_is_logged(self.log_with)
        given = log_kwargs or {}
        for tracker in self.trackers:
            tracker.log(values, step=step, **given.get(tracker.name, {}))

    def _finish_trackers(self: Facade) -> None:
        for tracker in self.trackers:
            tracker.finish()


def _say_why_nothing_is_logged(log_with: list[Any]) -> None:
    if log_with:
        names = ", ".join(each.name if isinstance(each, GeneralTracker) else str(each) for each in log_with)
        raise StateError(f"log() was called before init_trackers(), which starts the trackers asked for: {names}.")
    logger.warning_once("log() was called, but no tracker was asked for: pass log_with to Accelerator().")
