"""A function as the program of a rank, and its error as the error of whoever started the ranks."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from accelerate import env
from accelerate.errors import LaunchError
from accelerate.launch import report
from accelerate.launch.worker import user_traceback

__all__ = ["PrepareForLaunch", "RankFunction", "check_untouched", "raise_first"]


class PrepareForLaunch:
    """A picklable callable for ``torch.multiprocessing``: ``f(index, *args)`` runs ``launcher(*args)`` as that rank.

    With ``debug`` the ranks meet in the file that ACCELERATE_DEBUG_RDV_FILE names, over gloo; WORLD_SIZE says how many
    they are. ``distributed_type`` is kept for the caller.
    """

    def __init__(self, launcher: Callable[..., Any], distributed_type: str = "NO", debug: bool = False) -> None:
        self.launcher = launcher
        self.distributed_type = getattr(distributed_type, "value", distributed_type)
        self.debug = debug

    def __call__(self, index: int, *args: Any) -> None:
        before = env.get_int_from_env(["NODE_RANK"], 0) * env.get_int_from_env(["LOCAL_WORLD_SIZE"], 0)
        env.publish({"LOCAL_RANK": index, "RANK": before + index, "FORK_LAUNCHED": 1})
        if self.debug:
            _join_by_file(index)
        self.launcher(*args)


def _join_by_file(index: int) -> None:
    import torch.distributed as dist

    world = env.get_int_from_env(["WORLD_SIZE"], 1)
    file = env.get("ACCELERATE_DEBUG_RDV_FILE")
    if not file:
        raise LaunchError(
            f"PrepareForLaunch(debug=True) was called as rank {index} of {world}, but ACCELERATE_DEBUG_RDV_FILE does "
            "not say in which file the ranks meet. Set it and WORLD_SIZE around the start, or use debug_launcher()."
        )
    dist.init_process_group("gloo", rank=index, world_size=world, init_method=f"file://{file}")


class RankFunction:
    """``function(*args)`` as one rank. What it raises is left in ``folder`` for :func:`raise_first`, and raised on.

    ``places`` holds the environment of every rank by index, where the starter does not set it itself. What it returns
    is sent back with ``keep_result``, and has to be picklable then.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        folder: str,
        places: tuple[Mapping[str, str], ...] | None = None,
        *,
        kwargs: Mapping[str, Any] | None = None,
        keep_result: bool = False,
    ) -> None:
        self.function, self.args, self.folder, self.places = function, args, folder, places
        self.kwargs, self.keep_result = dict(kwargs or {}), keep_result
        self.__name__ = self.__qualname__ = getattr(function, "__qualname__", repr(function))

    def __call__(self, index: int | None = None) -> Any:
        # A forked rank has the handlers of the process that watches it, which are not meant for a rank.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if self.places is not None and index is not None:
            env.publish(self.places[index])
        env.put("FORK_LAUNCHED", 1)
        _one_thread()
        try:
            result = self.function(*self.args, **self.kwargs)
        except Exception as error:
            self._leave(error)
            raise
        return result if self.keep_result else None

    def _leave(self, error: Exception) -> None:
        rank = env.get_int_from_env(["RANK"], 0)
        text = report.describe(error)["message"]["extraInfo"]["py_callstack"]
        trace, error.__traceback__ = error.__traceback__, None
        try:
            packed = pickle.dumps(error)
            pickle.loads(packed)
        except Exception:  # an error may hold anything, also what cannot be sent
            packed = b""
        error.__traceback__ = trace
        partial = Path(self.folder) / f"rank_{rank}.partial"
        partial.write_bytes(pickle.dumps((time.time(), rank, packed, text)))
        os.replace(partial, partial.with_suffix(".pickle"))


def _one_thread() -> None:
    """OpenMP's threads do not live on in a fork: a parallel loop would wait for them for ever."""
    import torch

    torch.set_num_threads(1)


def raise_first(folder: str, world_size: int, otherwise: str) -> NoReturn:
    """Raises what the first rank to fail raised, with its rank and traceback as the cause.

    Raises:
        LaunchError: no rank left an error, or it cannot be sent between processes; ``otherwise`` says what is known.
    """
    # Written by our own children into a folder that only this user can write to.
    left = sorted(pickle.loads(path.read_bytes()) for path in Path(folder).glob("rank_*.pickle"))
    if not left:
        raise LaunchError(otherwise)
    _, rank, packed, text = left[0]
    more = f" ({len(left) - 1} more failed, this was the first)" if len(left) > 1 else ""
    cause = LaunchError(f"rank {rank} of {world_size} raised this{more}:\n\n{text.rstrip()}")
    if not packed:
        raise cause
    error: Exception = pickle.loads(packed)
    raise error.with_traceback(user_traceback(error)) from cause


def check_untouched(name: str) -> None:
    """Raises StateError where this process holds what its forks cannot use: a state, a group, or a device context."""
    import sys

    from accelerate.errors import StateError
    from accelerate.runtime import find

    advice = "Restart the kernel (or the program), and construct it inside the function that is launched."
    held = find()
    if held is not None:
        raise StateError(
            f"{name}() was called after an Accelerator or a state had been constructed here, by {held.origin}. {advice}"
        )
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise StateError(f"{name}() was called inside a process group. {advice.replace('construct', 'form')}")
    for kind in ("cuda", "xpu", "npu", "mlu", "musa", "sdaa"):
        device = getattr(torch, kind, None)
        if device is not None and hasattr(device, "is_initialized") and device.is_initialized():
            raise StateError(
                f"{name}() was called after {kind} had been initialised here, for example by a tensor that was moved "
                "to it, and a fork cannot use it any more. Restart the kernel, and touch the device only inside the "
                "function that is launched."
            )
