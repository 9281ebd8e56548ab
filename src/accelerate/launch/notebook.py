"""Training functions started from a notebook or from a test, on ranks that are forked from this process."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from typing import Any

from accelerate import env
from accelerate.config.enums import PrecisionType
from accelerate.config.run import RunConfig
from accelerate.errors import ConfigError, LaunchError
from accelerate.launch import ports, report
from accelerate.launch.functions import plan_function, run_function, start_method
from accelerate.launch.hardware import NO_DEVICES, detect
from accelerate.launch.ranks import RankFunction, check_untouched, raise_first

__all__ = ["debug_launcher", "notebook_launcher", "test_launch"]

DEFAULT_PORT = "29500"


def notebook_launcher(
    function: Callable[..., Any],
    args: tuple[Any, ...] = (),
    num_processes: int | None = None,
    mixed_precision: str = "no",
    use_port: str = DEFAULT_PORT,
    master_addr: str = "127.0.0.1",
    node_rank: int = 0,
    num_nodes: int = 1,
    rdzv_backend: str = "static",
    rdzv_endpoint: str = "",
    rdzv_conf: dict[str, Any] | None = None,
    rdzv_id: str = "none",
    max_restarts: int = 0,
    monitor_interval: float = 0.1,
    log_line_prefix_template: str | None = None,
) -> None:
    """Runs ``function(*args)`` on every device of this machine (or ``num_processes`` ranks) and returns when all did.

    ``num_processes`` counts this machine's ranks; with ``num_nodes`` machines the same call is made on each, with its
    own ``node_rank``. A single rank runs in this process. Accelerators are constructed inside ``function`` only. What
    the first rank to fail raised is raised here, with its rank and traceback as the cause.

    Raises:
        StateError: this process has initialised an accelerator, or a group, already.
        LaunchError: the numbers do not fit each other or the machine, or a rank was ended by a signal.
    """
    if mixed_precision.lower() not in PrecisionType:
        known = ", ".join(PrecisionType.list())
        raise ConfigError(f"mixed_precision={mixed_precision!r} was given to notebook_launcher. It is one of {known}.")
    devices = detect(env.snapshot())
    ranks = num_processes if num_processes is not None else max(1, devices.count)
    config = RunConfig(
        num_processes=ranks * num_nodes,
        num_machines=num_nodes,
        machine_rank=node_rank,
        main_process_ip=master_addr,
        main_process_port=_port(use_port, num_nodes, max_restarts),
        rdzv_backend=rdzv_backend,
        rdzv_conf=",".join(f"{name}={value}" for name, value in (rdzv_conf or {}).items()),
        max_restarts=max_restarts,
        monitor_interval=monitor_interval,
    )
    published = {"ACCELERATE_MIXED_PRECISION": mixed_precision.lower()}
    plan = plan_function(function, config, devices, published, endpoint=rdzv_endpoint, run_id=rdzv_id)
    for notice in plan.notices:
        report.say(f"notebook_launcher: {notice}")
    if plan.world_size == 1:
        with env.patch_environment(**plan.environment):
            function(*args)
        return
    check_untouched("notebook_launcher")
    run_function(function, args, plan, line_prefix=log_line_prefix_template)


def _port(use_port: str, num_nodes: int, max_restarts: int) -> int | None:
    """The port to ask for: none in particular on one machine, where the default stands and may be taken."""
    text = str(use_port)
    if not text.isdigit():
        raise LaunchError(f"use_port={use_port!r} was given to notebook_launcher. It is a number, and 0 takes any.")
    if num_nodes == 1 and (text == DEFAULT_PORT or max_restarts):
        return None
    return int(text)


def debug_launcher(function: Callable[..., Any], args: tuple[Any, ...] = (), num_processes: int = 2) -> None:
    """Runs ``function(*args)`` on ``num_processes`` real gloo ranks on the CPU, forked from this process.

    Meant for tests: it starts in milliseconds once torch is imported. What the first rank to fail raised is raised
    here, with its rank and traceback as the cause.

    Raises:
        StateError: this process has constructed a state or formed a group already.
        LaunchError: a rank was ended by a signal.
    """
    from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes

    check_untouched("debug_launcher")
    report.quieten()
    config = RunConfig(num_processes=num_processes, cpu=True)
    plan = plan_function(function, config, NO_DEVICES, {"ACCELERATE_USE_CPU": "true"})
    folder = tempfile.mkdtemp(prefix="accelerate-debug-")
    port = str(ports.free_port())
    places = tuple(
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(num_processes),
            "LOCAL_WORLD_SIZE": str(num_processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "ACCELERATE_DEBUG_RDV_FILE": f"{folder}/meeting",
        }
        for rank in range(num_processes)
    )
    try:
        with env.patch_environment(**plan.environment):
            start_processes(  # type: ignore[no-untyped-call]
                RankFunction(function, args, folder, places),
                nprocs=num_processes,
                start_method=start_method(),
            )
    except ProcessRaisedException as error:
        raise_first(folder, num_processes, f"Rank {error.error_index} of {num_processes} failed: {error}")
    except ProcessExitedException as error:
        how = f"was ended by {error.signal_name}" if error.signal_name else f"exited with code {error.exit_code}"
        raise LaunchError(f"Rank {error.error_index} of {num_processes} {how}.") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_launch() -> None:
    """Constructs the state of this process, as a check that its rank can be found out."""
    from accelerate.state import PartialState

    PartialState()


test_launch.__test__ = False  # type: ignore[attr-defined]  # pytest collects by name what a test module imports
