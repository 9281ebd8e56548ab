"""The table of trackers by name, and what a script that asks for some of them gets."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from accelerate import optional
from accelerate.config.enums import LoggerType
from accelerate.errors import ConfigError
from accelerate.logging import get_logger
from accelerate.tracking.base import GeneralTracker

__all__ = ["filter_trackers", "get_available_trackers", "register_tracker_class", "tracker_class"]

logger = get_logger(__name__)

Asked = str | LoggerType | GeneralTracker | type[GeneralTracker]

# Name → class; the module has the tracker's name, and so has the row of its package in `accelerate.optional`.
_BUILT_IN = {
    "aim": "AimTracker",
    "clearml": "ClearMLTracker",
    "comet_ml": "CometMLTracker",
    "dvclive": "DVCLiveTracker",
    "mlflow": "MLflowTracker",
    "swanlab": "SwanLabTracker",
    "tensorboard": "TensorBoardTracker",
    "trackio": "TrackioTracker",
    "wandb": "WandBTracker",
}
_registered: dict[str, type[GeneralTracker]] = {}


@cache
def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group="accelerate.trackers")}


def register_tracker_class(tracker_class: type[GeneralTracker]) -> None:
    """Makes a tracker of your own known by its ``name``, as if it were built in. A package may instead name its class
    in the entry-point group ``accelerate.trackers``. A name that is taken goes to the newcomer, with a warning.

    Raises:
        ValueError: this is not a subclass of :class:`GeneralTracker` with a ``name``.
    """
    if not (isinstance(tracker_class, type) and issubclass(tracker_class, GeneralTracker)):
        raise ConfigError(f"register_tracker_class() got {tracker_class!r}, which is no subclass of GeneralTracker.")
    name = getattr(tracker_class, "name", None)
    if not isinstance(name, str):
        raise ConfigError(f"{tracker_class.__name__} has no `name`, by which it could be asked for.")
    if name in _registered or name in _BUILT_IN or name in _entries():
        logger.warning(f"The tracker name {name!r} was taken; from now on it means {tracker_class.__name__}.")
    _registered[name] = tracker_class


def tracker_class(name: str) -> type[GeneralTracker]:
    """The class behind a tracker's name.

    Raises:
        ConfigError: no tracker is called so.
        MissingPackageError: the tracker's package is not installed.
    """
    if name in _registered:
        return _registered[name]
    if name in _BUILT_IN:
        optional.require(name, f"Tracker {name!r}")
        found: type[GeneralTracker] = getattr(import_module(f"accelerate.tracking.{name}"), _BUILT_IN[name])
        return found
    entry = _entries().get(name)
    if entry is None:
        known = sorted({*_BUILT_IN, *_registered, *_entries()})
        raise ConfigError(
            f"Tracker {name!r} is not known. Use 'all' or one of {', '.join(known)}; your own is made known with "
            "accelerate.tracking.register_tracker_class() or the entry-point group accelerate.trackers."
        )
    return entry.load()  # type: ignore[no-any-return]


def get_available_trackers() -> list[str]:
    """The names of the trackers whose packages are installed, and of those registered."""
    built_in = [name for name in _BUILT_IN if name not in _registered and optional.available(name)]
    return [*built_in, *(name for name in _entries() if name not in _registered), *_registered]


def filter_trackers(
    log_with: Asked | Iterable[Asked] | None, logging_dir: str | os.PathLike[str] | None = None
) -> list[Any]:
    """What ``log_with`` asks for: names, each known and installed, and trackers given as objects, as they are.

    "all" stands for every tracker that is installed and has what it needs.

    Raises:
        ConfigError: a name is not known, or its tracker needs a ``logging_dir`` and there is none. A ValueError.
        MissingPackageError: a tracker's package is not installed.
    """
    if log_with is None:
        return []
    asked = [log_with] if isinstance(log_with, (str, LoggerType, GeneralTracker, type)) else list(log_with)
    chosen: list[Any] = [each for each in asked if isinstance(each, GeneralTracker)]
    names = [_name(each) for each in asked if not isinstance(each, GeneralTracker)]
    if "all" in names:
        given = {tracker.name for tracker in chosen}
        able = [name for name in get_available_trackers() if logging_dir is not None or not _needs_folder(name)]
        return [*chosen, *(name for name in able if name not in given)]
    for name in dict.fromkeys(names):
        if _needs_folder(name) and logging_dir is None:
            raise ConfigError(
                f"Tracker {name!r} writes into a folder and there is none. Pass project_dir to Accelerator(), or "
                "ProjectConfiguration(logging_dir=…)."
            )
        chosen.append(name)
    return chosen


def _name(asked: Any) -> str:
    if isinstance(asked, LoggerType):
        return str(asked)
    if isinstance(asked, str):
        return asked if asked in _registered else asked.lower()
    if isinstance(asked, type) and issubclass(asked, GeneralTracker):
        if _registered.get(asked.name) is not asked:
            register_tracker_class(asked)
        return asked.name
    raise ConfigError(f"log_with has {asked!r}. Give names of trackers, or objects of subclasses of GeneralTracker.")


def _needs_folder(name: str) -> bool:
    return bool(tracker_class(name).requires_logging_directory)
