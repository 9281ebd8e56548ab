"""A function as the program of a job: planned as a script would be, and run on ranks that come from this process."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from accelerate import env
from accelerate.config.resolve import resolve_record
from accelerate.config.run import RunConfig, all_settings
from accelerate.errors import LaunchError
from accelerate.launch import ports, report
from accelerate.launch.base import Job, LaunchPlan
from accelerate.launch.hardware import Devices, detect, usable_cores
from accelerate.launch.ranks import RankFunction, check_untouched, raise_first
from accelerate.launch.torchrun import agent_plan

__all__ = ["launch", "plan_function", "run_function", "start_method"]


# Variables of the settings; those that other programs read too, such as OMP_NUM_THREADS, are left alone.
_OWN = ("ACCELERATE_", "FSDP_", "FP8_", "MEGATRON_", "PARALLELISM_")


def launch(function: Callable[..., Any], *args: Any, config: RunConfig | None = None, **kwargs: Any) -> list[Any]:
    """Runs ``function(*args, **kwargs)`` on every rank of this machine as ``accelerate launch`` would a script.

    ``config`` is the whole configuration: no file and no variable of this process's environment is read for it. With
    several machines the same call is made on each, with its own ``machine_rank``. One rank runs in this process;
    several are forks of it (new interpreters on Windows), so an Accelerator is constructed inside ``function`` only.

    Returns:
        What each rank of this machine returned, in the order of ranks; it has to be picklable where there are several.

    Raises:
        ConfigError: settings contradict one another.
        StateError: this process has initialised an accelerator, or a group, already.
        LaunchError: the numbers do not fit the machine, or a rank was ended by a signal. What the first rank to fail
            raised is raised here, with its rank and traceback as the cause.
    """
    resolved = resolve_record(config if config is not None else RunConfig())
    given = {path: source.where for path, source in resolved.explain()}
    environ = env.snapshot()
    owned = {name for item in all_settings() for name in item.environment if name.startswith(_OWN)}
    others: dict[str, str | None] = dict.fromkeys(owned & set(environ))
    plan = plan_function(function, resolved.config, detect(environ), {**others, **resolved.environment()}, given=given)
    for notice in (*resolved.notices, *plan.notices):
        report.say(f"accelerate.launch: {notice}")
    if plan.world_size == 1:
        with env.patch_environment(**plan.environment):
            return [function(*args, **kwargs)]
    check_untouched("accelerate.launch")
    return run_function(function, args, plan, kwargs=kwargs, keep_results=True)


def start_method() -> str:
    """How ranks come to be: by a fork where there is one, since a notebook's function cannot be imported anew."""
    return "spawn" if sys.platform == "win32" else "fork"


def plan_function(
    function: Callable[..., Any],
    config: RunConfig,
    devices: Devices,
    published: Mapping[str, str | None],
    *,
    given: Mapping[str, str] | None = None,
    endpoint: str = "",
    run_id: str | None = None,
) -> LaunchPlan:
    """What would be started for ``function``. Starts nothing.

    Raises:
        LaunchError: the settings cannot be met together.
    """
    job = Job(
        config=config,
        program=getattr(function, "__qualname__", repr(function)),
        environment=published,
        given=given or {},
        devices=devices,
        cores=usable_cores(),
        environ=env.snapshot(),
    )
    plan = agent_plan(job, kind="fork", argv=(job.program,))
    meeting = plan.rendezvous
    assert meeting is not None
    if run_id is not None:
        meeting = replace(meeting, run_id=run_id)
    if endpoint:
        address, _, port = endpoint.rpartition(":")
        if not (address and port.isdigit()):
            raise LaunchError(f"rdzv_endpoint={endpoint!r} was given to notebook_launcher. It is address:port.")
        meeting = replace(meeting, address=address.strip("[]"), port=int(port), local_address=None)
    return replace(plan, rendezvous=meeting)


def run_function(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    plan: LaunchPlan,
    *,
    kwargs: Mapping[str, Any] | None = None,
    keep_results: bool = False,
    line_prefix: str | None = None,
) -> list[Any]:
    """Runs it under torch's elastic agent and returns what the ranks of this machine returned (None of each, unless
    ``keep_results``). Raises as :func:`launch`."""
    from accelerate.launch.agent import Ended, failures_of, run_agent

    meeting = plan.rendezvous
    if meeting is not None and meeting.port and plan.machine_rank == 0:
        ports.claim(meeting.port)
    report.quieten()
    folder = tempfile.mkdtemp(prefix="accelerate-launch-")
    try:
        entry = RankFunction(function, args, folder, kwargs=kwargs, keep_result=keep_results)
        with env.patch_environment(**plan.environment):
            result = run_agent(plan, entry, (), folder=folder, start_method=start_method(), line_prefix=line_prefix)
        if result.is_failed():
            root = report.choose_root(failures_of(result.failures))
            raise_first(folder, plan.world_size, report.account(root, plan.world_size))
        return [value for _, value in sorted(result.return_values.items())]
    except Ended as ended:
        raise KeyboardInterrupt(f"{ended.signal.name} ended the ranks") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
