"""Running something with a smaller batch until it fits into memory."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

from accelerate.comm.operations import any_rank
from accelerate.devices.memory import clear_device_cache, should_reduce_batch_size

__all__ = ["find_executable_batch_size"]

logger = logging.getLogger(__name__)


def find_executable_batch_size(
    function: Callable[..., Any] | None = None,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[..., int] | None = None,
) -> Callable[..., Any]:
    """``function`` made to run with a batch size as first argument: ``starting_batch_size``, and after each time that
    memory ran out the size that ``reduce_batch_size_fn()`` returns (nine tenths by default). A decorator too.

    Collective where several processes train: when memory ran out on one rank, all try again with the smaller size.

    Raises:
        RuntimeError: no size above zero fits.
        TypeError: the caller passes a batch size of its own.
    """
    if function is None:
        return functools.partial(
            find_executable_batch_size,
            starting_batch_size=starting_batch_size,
            reduce_batch_size_fn=reduce_batch_size_fn,
        )
    run = function

    @functools.wraps(run)
    def attempt(*args: Any, **kwargs: Any) -> Any:
        _check_call(run, args, kwargs)
        size, name = starting_batch_size, getattr(run, "__name__", repr(run))
        while size > 0:
            result, failure = _try(run, size, args, kwargs)
            if not any_rank(failure is not None):
                return result
            result = None
            clear_device_cache(garbage_collection=True)
            smaller = reduce_batch_size_fn() if reduce_batch_size_fn is not None else int(size * 0.9)
            where = f": {failure}" if failure is not None else " on another rank"
            logger.warning("Batch size %d of %s() does not fit into memory%s. Next: %d.", size, name, where, smaller)
            size = smaller
        raise RuntimeError(f"No batch size fits into memory: {name}() was tried from {starting_batch_size} down.")

    return attempt


def _try(run: Callable[..., Any], size: int, args: Any, kwargs: Any) -> tuple[Any, str | None]:
    try:
        return run(size, *args, **kwargs), None
    except Exception as error:
        if not should_reduce_batch_size(error):
            raise
        # The traceback holds the frames, and they hold the tensors that have to go.
        error.__traceback__ = None
        return None, str(error).partition("\n")[0]


def _check_call(run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    names = list(inspect.signature(run).parameters)
    if not names or (len(names) < len(args) + 1 and not _takes_any(run)):
        shown = ", ".join(f"{name}={value!r}" for name, value in zip(names[1:], args[1:], strict=False))
        raise TypeError(
            f"{getattr(run, '__name__', run)}() gets its batch size, the first argument, from "
            f"find_executable_batch_size(): call it without one: ({shown})."
        )


def _takes_any(run: Callable[..., Any]) -> bool:
    return any(item.kind is item.VAR_POSITIONAL for item in inspect.signature(run).parameters.values())
