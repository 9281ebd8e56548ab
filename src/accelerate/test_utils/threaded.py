"""Ranks as threads of this process, or one after the other on a group that moves no data.

The one place that imports torch's private test groups.
"""

from __future__ import annotations

import contextvars
import importlib
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from accelerate.runtime import isolated
from accelerate.test_utils.forked import Outcome, RanksFailedError
from accelerate.topology import Topology

__all__ = ["fake_world", "thread_world", "watch_collectives"]


def _topology(rank: int, n: int, num_nodes: int) -> Topology:
    local = n // num_nodes
    return Topology(
        rank=rank,
        world_size=n,
        local_rank=rank % local,
        local_world_size=local,
        node_rank=rank // local,
        num_nodes=num_nodes,
        source="torchrun",
        master_addr="127.0.0.1",
    )


@contextmanager
def _excepthook_kept() -> Iterator[None]:
    # init_process_group puts a hook around the one it finds, every time, and never takes it off again.
    hook = sys.excepthook
    try:
        yield
    finally:
        sys.excepthook = hook


@dataclass(slots=True)
class _Report:
    outcome: Outcome | None = None
    order: float = 0.0


def thread_world(fn: Callable[[int, int], Any], n: int, timeout: float, num_nodes: int) -> list[Any]:
    """Runs ``fn(rank, n)`` on ``n`` threads over torch's threaded process group; what they returned, rank by rank.

    Raises:
        RanksFailedError: a rank raised or hung.
    """
    importlib.import_module("torch._dynamo")
    dist: Any = importlib.import_module("torch.distributed")
    private: Any = importlib.import_module("torch.testing._internal.distributed.multi_threaded_pg")
    isolate: Any = importlib.import_module("torch._C._distributed_c10d")._set_thread_isolation_mode
    reports = [_Report() for _ in range(n)]
    private._install_threaded_pg()
    isolate(True)
    store = dist.HashStore()

    def rank_main(rank: int) -> None:
        try:
            with isolated(_topology(rank, n, num_nodes)):
                dist.init_process_group("threaded", rank=rank, world_size=n, store=store)
                outcome = Outcome(rank=rank, ended="returned", value=fn(rank, n))
        except BaseException as error:
            outcome = Outcome(rank=rank, ended="raised", error=error, text=traceback.format_exc())
            private.ProcessLocalGroup.exception_handle(error)
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        reports[rank] = _Report(outcome, time.monotonic())

    threads = [
        threading.Thread(target=contextvars.Context().run, args=(rank_main, rank), name=f"rank-{rank}", daemon=True)
        for rank in range(n)
    ]
    try:
        with _excepthook_kept():
            _join(threads, reports, timeout, private.ProcessLocalGroup)
    finally:
        private.ProcessLocalGroup.reset()
        private._uninstall_threaded_pg()
        isolate(False)
    return _values(reports)


def _join(threads: list[threading.Thread], reports: list[_Report], timeout: float, group: Any) -> None:
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    frames = sys._current_frames()
    for rank, thread in enumerate(threads):
        if thread.is_alive() and reports[rank].outcome is None:
            reports[rank] = _Report(Outcome(rank=rank, ended="hung", text=_stack(frames.get(thread.ident or -1))), 0.0)
    if any(thread.is_alive() for thread in threads):
        group.exception_handle(TimeoutError())
        for thread in threads:
            thread.join(1.0)


def _stack(frame: FrameType | None) -> str:
    return "".join(traceback.format_stack(frame)) if frame is not None else ""


def _values(reports: list[_Report]) -> list[Any]:
    outcomes = [report.outcome for report in sorted(reports, key=lambda report: report.order) if report.outcome]
    if all(outcome.ended == "returned" for outcome in outcomes):
        return [outcome.value for outcome in sorted(outcomes, key=lambda outcome: outcome.rank)]
    # torch ends the other ranks with SystemExit once one failed: a consequence, not a failure of theirs.
    own = [outcome for outcome in outcomes if not isinstance(outcome.error, SystemExit)] or outcomes
    first = next(outcome for outcome in own if outcome.ended != "returned")
    raise RanksFailedError(own) from first.error


@contextmanager
def watch_collectives() -> Iterator[dict[int, list[str]]]:
    """What each rank of a world of threads sends to its groups from now on: rank → kinds of collectives, in order."""
    private: Any = importlib.import_module("torch.testing._internal.distributed.multi_threaded_pg")
    group = private.ProcessLocalGroup
    start = group._start_coll.__func__
    sent: dict[int, list[str]] = {}

    def noted(cls: Any, collective: Any, pg: Any) -> Any:
        # The thread's number, since a rank in a smaller group has another one there.
        rank = int(threading.current_thread().name.rpartition("-")[2])
        sent.setdefault(rank, []).append(type(collective).__name__)
        return start(cls, collective, pg)

    group._start_coll = classmethod(noted)
    try:
        yield sent
    finally:
        group._start_coll = classmethod(start)


def fake_world(fn: Callable[[int, int], Any], n: int, num_nodes: int) -> list[Any]:
    """Runs ``fn(rank, n)`` for one rank after the other on a group that moves no data: shapes and placement only."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    results = []
    for rank in range(n):
        with _excepthook_kept(), isolated(_topology(rank, n, num_nodes)):
            dist.init_process_group("fake", rank=rank, world_size=n, store=FakeStore())
            try:
                results.append(fn(rank, n))
            finally:
                if dist.is_initialized():
                    dist.destroy_process_group()
    return results
