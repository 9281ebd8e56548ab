"""Experiment trackers: the base class for your own, and one class for each library, imported when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelerate import lazy
from accelerate.tracking.base import BlankTracker, GeneralTracker, on_main_process
from accelerate.tracking.registry import (
    filter_trackers,
    get_available_trackers,
    register_tracker_class,
    tracker_class,
)

if TYPE_CHECKING:
    from accelerate.tracking.aim import AimTracker
    from accelerate.tracking.clearml import ClearMLTracker
    from accelerate.tracking.comet_ml import CometMLTracker
    from accelerate.tracking.dvclive import DVCLiveTracker
    from accelerate.tracking.mlflow import MLflowTracker
    from accelerate.tracking.swanlab import SwanLabTracker
    from accelerate.tracking.tensorboard import TensorBoardTracker
    from accelerate.tracking.trackio import TrackioTracker
    from accelerate.tracking.wandb import WandBTracker

__all__ = [
    "AimTracker",
    "BlankTracker",
    "ClearMLTracker",
    "CometMLTracker",
    "DVCLiveTracker",
    "GeneralTracker",
    "MLflowTracker",
    "SwanLabTracker",
    "TensorBoardTracker",
    "TrackioTracker",
    "WandBTracker",
    "filter_trackers",
    "get_available_trackers",
    "on_main_process",
    "register_tracker_class",
    "tracker_class",
]

_HOMES = {
    "accelerate.tracking.aim": "AimTracker",
    "accelerate.tracking.clearml": "ClearMLTracker",
    "accelerate.tracking.comet_ml": "CometMLTracker",
    "accelerate.tracking.dvclive": "DVCLiveTracker",
    "accelerate.tracking.mlflow": "MLflowTracker",
    "accelerate.tracking.swanlab": "SwanLabTracker",
    "accelerate.tracking.tensorboard": "TensorBoardTracker",
    "accelerate.tracking.trackio": "TrackioTracker",
    "accelerate.tracking.wandb": "WandBTracker",
}

__getattr__, __dir__, _ = lazy.attach(__name__, lazy.by_name(_HOMES))
