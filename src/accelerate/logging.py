"""Loggers for programs that run as several processes."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

from accelerate import env, runtime
from accelerate.errors import EnvironmentValueError, TopologyError
from accelerate.topology import Topology

__all__ = ["MultiProcessAdapter", "get_logger", "place"]

_LEVEL_VARIABLE = "ACCELERATE_LOG_LEVEL"


def place() -> Topology:
    """This process's place, also where no state was set up: the launcher has written it into the environment."""
    held = runtime.find()
    if held is not None:
        return held.topology
    try:
        return Topology.detect()
    except TopologyError:
        return Topology()  # a message is never lost to an environment that the constructor of the state will refuse


class MultiProcessAdapter(logging.LoggerAdapter):  # type: ignore[type-arg]  # generic at run time from 3.11 only
    """A logger that speaks once a job, not once a process.

    Every method takes two more keywords. ``main_process_only=False`` logs on every process. ``in_order=True`` logs on
    every process, one after the other by rank; Collective. It works before any state exists.
    """

    def __init__(self, logger: logging.Logger, extra: Any = None) -> None:
        super().__init__(logger, extra)
        self._said: set[str] = set()

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Adds the adapter's ``extra`` to the call's own, which wins."""
        if self.extra:
            kwargs["extra"] = {**self.extra, **(kwargs.get("extra") or {})}
        return msg, kwargs

    def log(self, level: int, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Logs ``msg % args``; see the class for ``main_process_only`` and ``in_order``."""
        main_process_only = kwargs.pop("main_process_only", True)
        in_order = kwargs.pop("in_order", False)
        enabled = self.isEnabledFor(level)
        if not enabled and not in_order:
            return
        # So that a record names the caller's line and not this one.
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        if in_order:
            self._log_in_order(enabled, level, msg, args, kwargs)
        elif not main_process_only or place().is_main:
            msg, kwargs = self.process(msg, kwargs)  # type: ignore[assignment]
            self.logger.log(level, msg, *args, **kwargs)

    def _log_in_order(self, enabled: bool, level: int, msg: Any, args: Any, kwargs: dict[str, Any]) -> None:
        kwargs["stacklevel"] += 1
        held = runtime.find()
        msg, kwargs = self.process(msg, kwargs)  # type: ignore[assignment]
        for rank in range(held.topology.world_size if held is not None else 1):
            if enabled and (held is None or rank == held.topology.rank):
                self.logger.log(level, msg, *args, **kwargs)
            if held is not None:
                held.collectives.barrier()

    def warning_once(self, *args: Any, **kwargs: Any) -> None:
        """Logs a warning the first time it is given; the same text and arguments are not said again."""
        key = repr(args)
        if key in self._said:
            return
        if kwargs.get("main_process_only", True) and not kwargs.get("in_order") and not place().is_main:
            return  # not said yet: ranks that are threads share this
        self._said.add(key)
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        self.log(logging.WARNING, *args, **kwargs)


_adapters: dict[str, MultiProcessAdapter] = {}


def get_logger(name: str, log_level: str | None = None) -> MultiProcessAdapter:
    """The logger called ``name``, which speaks on the main process unless told otherwise.

    ``log_level`` ("DEBUG", "info", …) sets its level; without it ACCELERATE_LOG_LEVEL does. The root logger and the
    other libraries' are left alone.

    Raises:
        ValueError: the level is not one that :mod:`logging` knows.
    """
    logger = logging.getLogger(name)
    if log_level is not None:
        logger.setLevel(log_level.upper())
    else:
        _level_from_environment(logger)
    adapter = _adapters.get(name)
    if adapter is None:
        adapter = _adapters[name] = MultiProcessAdapter(logger, {})
    return adapter


def _level_from_environment(logger: logging.Logger) -> None:
    wanted = env.get(_LEVEL_VARIABLE)
    if not wanted:
        return
    try:
        logger.setLevel(wanted.upper())
    except ValueError as error:
        raise EnvironmentValueError(
            f"{_LEVEL_VARIABLE}={wanted!r} is not a log level. Use DEBUG, INFO, WARNING, ERROR or CRITICAL."
        ) from error
