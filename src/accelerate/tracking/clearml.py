"""ClearML."""

from __future__ import annotations

from typing import Any

from accelerate.tracking.base import GeneralTracker, numbers, on_main_process

__all__ = ["ClearMLTracker"]

_SPLITS = ("train", "eval", "test")


class ClearMLTracker(GeneralTracker):
    """Logs to the task that is under way, or to one of the project ``run_name``. Keywords go to ``Task.init``."""

    name = "clearml"
    requires_logging_directory = False

    def __init__(self, run_name: str | None = None, **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self.init_kwargs = kwargs
        self.task: Any = None
        self._own = False

    @on_main_process
    def start(self) -> None:
        from clearml import Task

        self.task = Task.current_task()
        self._own = self.task is None
        if self._own:
            given = {"project_name": self.run_name, "task_name": self.run_name, **self.init_kwargs}
            self.task = Task.init(**given)

    @property
    def tracker(self) -> Any:
        """The ClearML task."""
        return self.task

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.task.connect_configuration(values)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Logs numbers: with a step as points of a chart, without as single values."""
        report = self.task.get_logger()
        for name, value in numbers(values).items():
            if not isinstance(value, (int, float)):
                continue
            if step is None:
                report.report_single_value(name=name, value=value, **kwargs)
            else:
                title, series = _title_and_series(name)
                report.report_scalar(title=title, series=series, value=value, iteration=step, **kwargs)

    @on_main_process
    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Logs images; keywords go to ``report_image``."""
        for name, image in values.items():
            title, series = _title_and_series(name)
            self.task.get_logger().report_image(title=title, series=series, iteration=step, image=image, **kwargs)

    @on_main_process
    def log_table(
        self,
        table_name: str,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Logs a table, given as columns and rows or as a data frame.

        Raises:
            ValueError: neither was given.
        """
        table = dataframe
        if table is None:
            if data is None:
                raise ValueError(f"Table {table_name!r} has no content: give `data` (with `columns`) or `dataframe`.")
            table = data if columns is None else [columns, *data]
        title, series = _title_and_series(table_name)
        self.task.get_logger().report_table(title=title, series=series, table_plot=table, iteration=step, **kwargs)

    @on_main_process
    def finish(self) -> None:
        """Closes the task, unless it was under way before."""
        if self._own:
            self.task.close()


def _title_and_series(name: str) -> tuple[str, str]:
    """The chart and the line of a metric: "eval_loss" is the line "eval" of the chart "loss"."""
    for split in _SPLITS:
        for sign in ("_", "/"):
            if name.startswith(split + sign):
                return name[len(split) + 1 :], split
    return name, "train"
