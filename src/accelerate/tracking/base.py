"""The seam for an experiment tracker. The public name of the base class is ``GeneralTracker``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, cast

from accelerate.logging import place

__all__ = ["BlankTracker", "GeneralTracker", "numbers", "on_main_process"]

F = TypeVar("F", bound=Callable[..., Any])

_REQUIRED = ("name", "requires_logging_directory", "tracker")


def on_main_process(function: F) -> F:
    """A tracker's method, made to do nothing and return None on other processes while ``main_process_only`` holds."""

    @functools.wraps(function)
    def on_main(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "main_process_only", False) and not place().is_main:
            return None
        return function(self, *args, **kwargs)

    return cast(F, on_main)


class GeneralTracker:
    """Base of every tracker. A subclass defines

    - ``name``: how it is asked for;
    - ``requires_logging_directory``: whether it is constructed with ``logging_dir``;
    - ``tracker``: a property with the object of the tracking library;

    and the calls below. The Accelerator constructs it with the project's name and the keywords for it, then calls
    ``start``, ``store_init_configuration``, ``log`` as often as the script does, and ``finish``; all on the main
    process. ``main_process_only`` is what :func:`on_main_process` goes by when calls are made directly.
    """

    main_process_only: ClassVar[bool] = True
    name: str
    requires_logging_directory: bool

    def __init__(self, _blank: bool = False) -> None:
        if _blank:
            return
        missing = [attribute for attribute in _REQUIRED if not hasattr(type(self), attribute)]
        missing = [attribute for attribute in missing if attribute not in vars(self)]
        if missing:
            raise NotImplementedError(
                f"{type(self).__name__} does not define {', '.join(missing)}. A tracker defines `name`, "
                "`requires_logging_directory` and the property `tracker` in its class."
            )

    def start(self) -> None:
        """Begins the run. Called once, before anything is logged."""

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Stores the run's hyper-parameters."""

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Logs ``values`` for a step; keywords go to the tracking library."""

    def finish(self) -> None:
        """Ends the run: everything logged is written when this returns."""


class BlankTracker(GeneralTracker):
    """What other processes get for a tracker of the main process: whatever is called on it does nothing."""

    name = "blank"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__(_blank=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        return None


def numbers(values: dict[str, Any]) -> dict[str, Any]:
    """``values`` with tensors and arrays of one element as Python numbers, which every library takes."""
    return {name: _number(value) for name, value in values.items()}


def _number(value: Any) -> Any:
    if isinstance(value, (int, float, str)):
        return value
    item, size = getattr(value, "item", None), getattr(value, "numel", None) or getattr(value, "size", None)
    if callable(item) and (size() if callable(size) else size) == 1:
        return item()
    return value
