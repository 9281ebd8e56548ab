"""What a forked rank does between its birth and its report."""

from __future__ import annotations

import ctypes
import faulthandler
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from accelerate import env

__all__ = ["ChildSpec", "child_main"]

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """What one rank runs, and in what surroundings. Times in seconds."""

    call: Callable[[], Any]
    env: dict[str, str]
    init: bool
    linger: bool
    timeout: float


def child_main(spec: ChildSpec, conn: Connection, inherited: list[Connection], stacks: Path) -> None:
    """Runs ``spec.call``, sends how it ended through ``conn``, and returns when the process may go."""
    for other in inherited:
        other.close()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with stacks.open("w") as file:
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
        report, good = _run(spec)
        conn.send_bytes(report)
        if good and spec.linger:
            conn.poll(spec.timeout)
        if good:
            _leave_group()
        faulthandler.unregister(signal.SIGUSR1)
    conn.close()


def _run(spec: ChildSpec) -> tuple[bytes, bool]:
    try:
        env.publish(spec.env)
        if spec.init:
            import torch.distributed as dist

            dist.init_process_group("gloo", timeout=timedelta(seconds=spec.timeout))
        return pickle.dumps(("returned", spec.call(), None, "")), True
    except BaseException as error:
        return pickle.dumps(("raised", None, _dumps(error), traceback.format_exc())), False


def _dumps(error: BaseException) -> bytes | None:
    try:
        return pickle.dumps(error)
    except Exception:
        return None


def _leave_group() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
