"""Ranks as processes forked from this one, each with the environment a launcher would give it.

A fork of a process that has torch imported costs milliseconds, where a new interpreter costs seconds.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from accelerate.test_utils.forked_child import ChildSpec, child_main

__all__ = ["ForkedWorld", "Outcome", "RanksFailedError", "fork_process", "fork_world"]

GRACE = 10.0
POLL = 0.2
STACK_WAIT = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one rank ended. ``ended`` is "returned", "raised", "died" or "hung"; ``text`` is its traceback or stacks.

    ``exitcode`` is negative where a signal ended the process. ``error`` is the exception, or None where it could not
    be pickled.
    """

    rank: int
    ended: str
    value: Any = None
    error: BaseException | None = None
    text: str = ""
    exitcode: int | None = None

    def describe(self) -> str:
        """A paragraph that names the rank, what became of it and where."""
        said = {
            "returned": "returned",
            "raised": "raised",
            "hung": "did not end in time. Its stacks",
            "died": f"exited with code {self.exitcode} before it reported",
        }[self.ended]
        if self.ended == "died" and self.exitcode is not None and self.exitcode < 0:
            said = f"was ended by {signal.Signals(-self.exitcode).name}"
        return f"rank {self.rank} {said}" + (f":\n{self.text.rstrip()}" if self.text else "")


class RanksFailedError(RuntimeError):
    """Some ranks did not return. ``outcomes`` holds every rank's, the first to fail first; the cause is its error."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        self.outcomes = outcomes
        parts = [outcome.describe() for outcome in outcomes if outcome.ended != "returned"]
        if good := sorted(outcome.rank for outcome in outcomes if outcome.ended == "returned"):
            parts.append(f"ranks that returned: {good}")
        super().__init__("\n\n".join(parts))


@dataclass(slots=True, kw_only=True)
class _Rank:
    rank: int
    pid: int
    process: BaseProcess
    conn: Connection
    stacks: Path
    outcome: Outcome | None = None
    order: float = 0.0

    def settle(self, ended: str, **rest: Any) -> None:
        self.order = time.monotonic()
        self.outcome = Outcome(rank=self.rank, ended=ended, **rest)


@dataclass(slots=True, kw_only=True)
class ForkedWorld:
    """Ranks that run. As a context manager it ends, on leaving, whatever still runs."""

    ranks: list[_Rank]
    timeout: float
    grace: float
    folder: tempfile.TemporaryDirectory[str]
    store: Any = None
    started: float = field(default_factory=time.monotonic)
    closed: bool = False

    @property
    def pids(self) -> list[int]:
        """The process ids, rank by rank."""
        return [rank.pid for rank in self.ranks]

    def kill(self, rank: int = 0, sig: int = signal.SIGKILL) -> None:
        """Sends one rank a signal."""
        os.kill(self.ranks[rank].pid, sig)

    def outcomes(self) -> list[Outcome]:
        """Waits until every rank ended, or the time is up, and returns how each did, rank by rank."""
        try:
            self._collect()
        finally:
            self.close()
        return [rank.outcome for rank in self.ranks if rank.outcome is not None]

    def results(self) -> list[Any]:
        """What every rank returned, rank by rank.

        Raises:
            RanksFailedError: a rank raised, died or hung.
        """
        outcomes = self.outcomes()
        if all(outcome.ended == "returned" for outcome in outcomes):
            return [outcome.value for outcome in outcomes]
        arrival = [rank.outcome for rank in sorted(self.ranks, key=lambda rank: rank.order) if rank.outcome]
        first = next(outcome for outcome in arrival if outcome.ended != "returned")
        raise RanksFailedError(arrival) from first.error

    def _collect(self) -> None:
        deadline = self.started + self.timeout
        hurried = False
        while waiting := [rank for rank in self.ranks if rank.outcome is None]:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            ready = wait([rank.conn for rank in waiting], min(left, POLL))
            for rank in waiting:
                # A rank's own children can hold its end of the pipe open, so that its death shows in waitpid only.
                if rank.conn in ready or (rank.process.exitcode is not None and not rank.conn.poll()):
                    self._receive(rank)
            if not hurried and any(rank.outcome and rank.outcome.ended != "returned" for rank in self.ranks):
                hurried, deadline = True, min(deadline, time.monotonic() + self.grace)
        self._interrogate([rank for rank in self.ranks if rank.outcome is None])

    def _receive(self, rank: _Rank) -> None:
        try:
            if rank.process.exitcode is not None and not rank.conn.poll():
                raise EOFError
            ended, value, error, text = pickle.loads(rank.conn.recv_bytes())
        except (EOFError, ConnectionResetError):
            rank.process.join(STACK_WAIT)
            rank.settle("died", exitcode=rank.process.exitcode)
            return
        rank.settle(ended, value=value, error=_loads(error), text=text)

    def _interrogate(self, hanging: list[_Rank]) -> None:
        for rank in hanging:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGUSR1)
        if hanging:
            time.sleep(STACK_WAIT)
        for rank in hanging:
            text = rank.stacks.read_text() if rank.stacks.exists() else ""
            rank.settle("hung", text=text or "(none: it is stopped, or has not begun)")

    def close(self) -> None:
        """Lets go the ranks that reported, and ends the rest."""
        if self.closed:
            return
        self.closed = True
        for rank in self.ranks:
            with contextlib.suppress(OSError):
                rank.conn.send_bytes(b"go")
        for rank in self.ranks:
            if rank.outcome is not None and rank.outcome.ended in ("returned", "raised"):
                rank.process.join(GRACE)
            if rank.process.is_alive():
                rank.process.kill()
            rank.process.join()
            rank.process.close()
            rank.conn.close()
        self.store = None
        self.folder.cleanup()

    def __enter__(self) -> ForkedWorld:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _loads(data: bytes | None) -> BaseException | None:
    if data is None:
        return None
    try:
        error: BaseException = pickle.loads(data)
    except Exception:
        return None
    return error


def fork_world(
    fn: Callable[[int, int], Any],
    n: int = 2,
    *,
    timeout: float = 60.0,
    init: bool = True,
    env: Mapping[str, str] | None = None,
    num_nodes: int = 1,
    linger: bool = True,
    grace: float = GRACE,
) -> ForkedWorld:
    """Starts ``fn(rank, n)`` on ``n`` ranks and returns at once.

    Every rank gets the names that torchrun sets, and ``env`` over them. With ``init`` the gloo group exists before
    ``fn`` runs; without, whoever asks torch for the environment's group gets it. With ``linger`` a rank that returned
    stays until all did, as a real one would that has more to do; without, it leaves at once. After the first failure
    the others have ``grace`` seconds.
    """
    import torch.distributed as dist

    _warm()
    store = dist.TCPStore("127.0.0.1", 0, n, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    local = n // num_nodes
    envs = [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(n),
            "LOCAL_RANK": str(rank % local),
            "LOCAL_WORLD_SIZE": str(local),
            "GROUP_RANK": str(rank // local),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            # The store lives in this process, so that no port is chosen before it is taken.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "OMP_NUM_THREADS": "1",
            **(env or {}),
        }
        for rank in range(n)
    ]
    specs = [
        ChildSpec(call=_bind(fn, rank, n), env=envs[rank], init=init, linger=linger, timeout=timeout)
        for rank in range(n)
    ]
    return _start(specs, timeout, grace, store)


def fork_process(
    fn: Callable[[], Any], *, timeout: float = 60.0, env: Mapping[str, str] | None = None, warm: bool = True
) -> ForkedWorld:
    """Starts ``fn()`` in one process that is no part of a job, and returns at once: for tests that kill it."""
    if warm:
        _warm()
    spec = ChildSpec(call=fn, env=dict(env or {}), init=False, linger=False, timeout=timeout)
    return _start([spec], timeout, GRACE, None)


def _bind(fn: Callable[[int, int], Any], rank: int, n: int) -> Callable[[], Any]:
    return lambda: fn(rank, n)


def _warm() -> None:
    # Without torch._dynamo in the parent every child that builds a DDP model pays seconds for importing it.
    importlib.import_module("torch._dynamo")


def _start(specs: list[ChildSpec], timeout: float, grace: float, store: Any) -> ForkedWorld:
    context = multiprocessing.get_context("fork")
    folder = tempfile.TemporaryDirectory(prefix="ranks-")
    world = ForkedWorld(ranks=[], timeout=timeout, grace=grace, folder=folder, store=store)
    # A collection in a rank would touch, and so copy, every object of every library imported here: seconds each.
    gc.freeze()
    try:
        for index, spec in enumerate(specs):
            ours, theirs = context.Pipe()
            stacks = Path(folder.name) / f"stacks-{index}.txt"
            inherited = [rank.conn for rank in world.ranks] + [ours]
            process = context.Process(target=child_main, args=(spec, theirs, inherited, stacks))
            with warnings.catch_warnings():
                # Python 3.12 warns of any fork beside other threads; torch's do not hold locks that a child needs.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            theirs.close()
            world.ranks.append(_Rank(rank=index, pid=process.pid or -1, process=process, conn=ours, stacks=stacks))
    except BaseException:
        world.close()
        raise
    finally:
        gc.unfreeze()
    return world
