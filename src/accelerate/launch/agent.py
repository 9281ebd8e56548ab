"""Torch's elastic agent, run as a library: it starts this machine's ranks, watches them and starts them again.

The only module of the command-line launch that imports torch.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch.distributed.elastic.rendezvous.registry as rendezvous_registry
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, ProcessFailure, SignalException, Std
from torch.distributed.elastic.rendezvous import RendezvousParameters

from accelerate import env
from accelerate.errors import LaunchError
from accelerate.launch import report
from accelerate.launch.base import LaunchPlan, Rendezvous

__all__ = ["Ended", "failures_of", "run_agent", "run_command"]

MEETING_TIMEOUT = 900


class Agent(LocalElasticAgent):
    """The agent, which says when it starts ranks again and ends them at once when told to stop twice."""

    world_size: int = 1
    result: RunResult | None = None
    announce: Callable[[report.Failure, int, int], None] | None = None

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self.result = super()._monitor_workers(worker_group)
        return self.result

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        if self.result is not None and self.result.failures and self.announce is not None:
            most = worker_group.spec.max_restarts
            self.announce(report.choose_root(failures_of(self.result.failures)), most - self._remaining_restarts, most)
        super()._restart_workers(worker_group)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, *args: Any, **kwargs: Any) -> None:
        with self._impatient():
            super()._shutdown(death_sig, *args, **kwargs)

    @contextmanager
    def _impatient(self) -> Iterator[None]:
        """While ranks are given time to end, a further signal ends them at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        watched = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(sig, lambda *_: self._kill()) for sig in watched]
        try:
            yield
        finally:
            for sig, handler in zip(watched, before, strict=True):
                signal.signal(sig, handler)

    def _kill(self) -> None:
        for pid in (self._pcontext.pids() if self._pcontext else {}).values():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))


class Ended(Exception):
    """A signal ended the job: ``signal`` is the one that this process got."""

    def __init__(self, received: signal.Signals) -> None:
        super().__init__(received.name)
        self.signal = received


def failures_of(failures: dict[int, ProcessFailure]) -> list[report.Failure]:
    """What torch's agent knows about ranks that failed, with the records that they wrote."""
    found = []
    for rank, failure in sorted(failures.items()):
        record = report.load(failure.error_file)
        found.append(
            report.Failure(
                rank=rank,
                code=failure.exitcode,
                pid=failure.pid,
                time=record["time"] if record and "time" in record else float(failure.timestamp),
                file=failure.error_file if record else None,
                record=record,
            )
        )
    return found


def run_agent(
    plan: LaunchPlan,
    entrypoint: Callable[..., Any] | str,
    args: tuple[Any, ...],
    *,
    folder: str,
    start_method: str = "spawn",
    line_prefix: str | None = None,
    announce: Callable[[report.Failure, int, int], None] | None = None,
) -> RunResult:
    """Starts this machine's ranks, waits for them, and returns how they ended. The environment has to be set before.

    Raises:
        LaunchError: the port is taken, or the machines do not meet.
        Ended: this process was told to stop; the ranks have been stopped.
    """
    meeting = plan.rendezvous or Rendezvous()
    agent = _build(plan, meeting, entrypoint, args, folder, start_method, line_prefix)
    agent.world_size, agent.announce = plan.world_size, announce
    handler = agent._worker_group.spec.rdzv_handler
    shutdown = True
    handlers = {sig: signal.getsignal(sig) for sig in _signals()}
    try:
        result: RunResult = agent.run()
        return result
    except SignalException as received:
        # A meeting that is shut down stays closed, and other machines may still come back to it.
        shutdown = False
        raise Ended(received.sigval) from None
    except KeyboardInterrupt:
        raise Ended(signal.SIGINT) from None
    except Exception as error:
        if agent.result is not None:
            raise
        raise LaunchError(
            f"The {plan.machines[1]} machine(s) of the job did not meet at {meeting.endpoint} "
            f"({meeting.backend}): {error} Check that every machine was started with the same address, port and "
            "number of machines and its own --machine_rank, and that the port can be reached."
        ) from error
    finally:
        # The agent leaves its own behind, and a notebook lives on after it.
        for sig, before in handlers.items():
            signal.signal(sig, before)
        if shutdown:
            handler.shutdown()


def _signals() -> list[signal.Signals]:
    if threading.current_thread() is not threading.main_thread():
        return []
    return [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]


def _build(
    plan: LaunchPlan,
    meeting: Rendezvous,
    entrypoint: Callable[..., Any] | str,
    args: tuple[Any, ...],
    folder: str,
    start_method: str,
    line_prefix: str | None,
) -> Agent:
    least, most = plan.machines
    local = meeting.local_address or _address_towards(meeting)
    static = meeting.backend == "static"
    # The static meeting compares this number without reading it as one first.
    own: dict[str, Any] = {"rank": plan.machine_rank} if static else {}
    parameters = RendezvousParameters(
        backend=meeting.backend,
        endpoint=meeting.endpoint,
        run_id=meeting.run_id,
        min_nodes=least,
        max_nodes=most,
        local_addr=local,
        **{"timeout": str(MEETING_TIMEOUT), **own, **meeting.options},
    )
    spec = WorkerSpec(
        role=meeting.role,
        local_world_size=plan.nprocs,
        entrypoint=entrypoint,
        args=args,
        rdzv_handler=rendezvous_registry.get_rendezvous_handler(parameters),
        max_restarts=meeting.max_restarts,
        monitor_interval=meeting.monitor_interval,
        master_addr=meeting.address if static else None,
        master_port=meeting.port if static else None,
        local_addr=local,
    )
    logs = DefaultLogsSpecs(log_dir=folder, redirects=Std.NONE, tee=Std.from_str(meeting.tee))
    return Agent(spec=spec, logs_specs=logs, start_method=start_method, log_line_prefix_template=line_prefix)


def _address_towards(meeting: Rendezvous) -> str | None:
    """This machine's address on the network that leads to the first machine; None where that cannot be told."""
    import socket

    family = socket.AF_INET6 if ":" in meeting.address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((meeting.address, meeting.port or 1))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _interface_of(address: str | None) -> str | None:
    """The network interface that has ``address``, unless it is the loopback."""
    import psutil

    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return None if address in ("127.0.0.1", "::1") else name
    return None


def run_command(plan: LaunchPlan) -> int:
    """Runs the plan's command on every rank of this machine and returns the exit code; shows a failure once."""
    meeting = plan.rendezvous or Rendezvous()
    values = dict(plan.environment)
    if plan.machines[1] > 1 and not env.get("GLOO_SOCKET_IFNAME"):
        # Left alone, gloo tells the other machines whatever address this host's name has, often 127.0.0.1.
        values["GLOO_SOCKET_IFNAME"] = _interface_of(_address_towards(meeting))
    report.quieten()
    folder = meeting.log_dir or tempfile.mkdtemp(prefix="accelerate-launch-")
    quiet = plan.job.config.quiet
    keep = meeting.log_dir is not None

    def announce(root: report.Failure, number: int, most: int) -> None:
        nonlocal keep
        keep = keep or root.file is not None
        report.show(root, plan.world_size, quiet=quiet)
        report.say(f"accelerate launch: all ranks start again (restart {number} of {most}).")

    # Dollars are doubled because the agent reads the arguments as a template.
    arguments = tuple(word.replace("$", "$$") for word in plan.argv[1:])
    try:
        with env.patch_environment(**values):
            result = run_agent(plan, plan.argv[0], arguments, folder=folder, announce=announce)
        if not result.is_failed():
            return 0
        root, others = report.summarise(failures_of(result.failures), plan.world_size, folder, always=keep)
        keep = keep or root.file is not None
        report.show(root, plan.world_size, others=len(others), program=plan.job.program, quiet=quiet)
        return root.exit_code
    except Ended as ended:
        if not quiet:
            many = f"{plan.nprocs} ranks" if plan.nprocs > 1 else "the rank"
            report.say(f"\naccelerate launch: {ended.signal.name} ended {many} of this machine.")
        return 128 + ended.signal
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
