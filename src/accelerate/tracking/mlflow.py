"""MLflow."""

from __future__ import annotations

import json
import os
from itertools import islice
from typing import Any

from accelerate import env
from accelerate.errors import EnvironmentValueError
from accelerate.logging import get_logger
from accelerate.tracking.base import GeneralTracker, numbers, on_main_process

__all__ = ["MLflowTracker"]

logger = get_logger(__name__)

_PARAMETERS_A_CALL = 100  # the most that MLflow takes in one request


class MLflowTracker(GeneralTracker):
    """Logs a run of the experiment ``experiment_name``, which is made where it is not there.

    ``logging_dir`` is the tracking URI or folder. MLflow's own variables win over the arguments: MLFLOW_TRACKING_URI,
    MLFLOW_EXPERIMENT_NAME, MLFLOW_RUN_ID, MLFLOW_TAGS (JSON), MLFLOW_NESTED_RUN.
    """

    name = "mlflow"
    requires_logging_directory = False

    def __init__(
        self,
        experiment_name: str | None = None,
        logging_dir: str | os.PathLike[str] | None = None,
        run_id: str | None = None,
        tags: dict[str, Any] | str | None = None,
        nested_run: bool | None = False,
        run_name: str | None = None,
        description: str | None = None,
    ) -> None:
        super().__init__()
        self.experiment_name = env.get("MLFLOW_EXPERIMENT_NAME", experiment_name)
        self.logging_dir = logging_dir
        self.run_id = env.get("MLFLOW_RUN_ID", run_id)
        self.tags = _tags(env.get("MLFLOW_TAGS") or tags)
        self.nested_run = env.flag("MLFLOW_NESTED_RUN", bool(nested_run))
        self.run_name = run_name
        self.description = description
        self.active_run: Any = None

    @on_main_process
    def start(self) -> None:
        import mlflow

        if self.logging_dir is not None and env.get("MLFLOW_TRACKING_URI") is None:
            mlflow.set_tracking_uri(os.fspath(self.logging_dir))
        experiment = mlflow.set_experiment(self.experiment_name) if self.experiment_name else None
        self.active_run = mlflow.start_run(
            run_id=self.run_id,
            experiment_id=None if experiment is None else experiment.experiment_id,
            run_name=self.run_name,
            nested=self.nested_run,
            tags=self.tags,
            description=self.description,
        )

    @property
    def tracker(self) -> Any:
        """The active MLflow run."""
        return self.active_run

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Stores hyper-parameters; those that are longer than MLflow takes are left out with a warning."""
        import mlflow

        longest = mlflow.utils.validation.MAX_PARAM_VAL_LENGTH
        short = {name: value for name, value in values.items() if len(str(value)) <= longest}
        if len(short) < len(values):
            left_out = ", ".join(name for name in values if name not in short)
            logger.warning(f"MLflow takes parameters of up to {longest} characters, so these are left out: {left_out}.")
        remaining = iter(short.items())
        while part := dict(islice(remaining, _PARAMETERS_A_CALL)):
            mlflow.log_params(part)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Logs numbers; anything else is left out with a warning, since MLflow's metrics are numbers."""
        import mlflow

        metrics = {name: value for name, value in numbers(values).items() if isinstance(value, (int, float))}
        for name in values:
            if name not in metrics:
                logger.warning_once(f"MLflow takes numbers, so {name!r} ({type(values[name]).__name__}) is left out.")
        mlflow.log_metrics(metrics, step=step, **kwargs)

    @on_main_process
    def log_figure(self, figure: Any, artifact_file: str, **save_kwargs: Any) -> None:
        """Logs a matplotlib or plotly figure as an artifact."""
        import mlflow

        mlflow.log_figure(figure=figure, artifact_file=artifact_file, save_kwargs=save_kwargs)

    @on_main_process
    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> None:
        """Logs every file of a folder as artifacts."""
        import mlflow

        mlflow.log_artifacts(local_dir=local_dir, artifact_path=artifact_path)

    @on_main_process
    def log_artifact(self, local_path: str, artifact_path: str | None = None) -> None:
        """Logs one file as an artifact."""
        import mlflow

        mlflow.log_artifact(local_path=local_path, artifact_path=artifact_path)

    @on_main_process
    def finish(self) -> None:
        import mlflow

        mlflow.end_run()


def _tags(tags: dict[str, Any] | str | None) -> dict[str, Any] | None:
    if not isinstance(tags, str):
        return tags
    try:
        found: dict[str, Any] = json.loads(tags)
    except json.JSONDecodeError as error:
        raise EnvironmentValueError(f"MLflow tags {tags!r} are not a JSON object of tag names and values.") from error
    return found
