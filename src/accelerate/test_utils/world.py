"""Several ranks inside one test.

========= ============================================== ======================================== =================
how       what a rank is                                 what is real                             cost of two ranks
========= ============================================== ======================================== =================
threads   a thread on torch's threaded process group     values, DDP, FSDP2; shared: RNG, globals milliseconds
fork      a process forked from this one, on gloo        everything a CPU can do                  0.1 to 1 s
fake      one rank after the other, no data moves        shapes and placement                     milliseconds
========= ============================================== ======================================== =================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

from accelerate.test_utils.forked import GRACE, ForkedWorld, Outcome, RanksFailedError, fork_process, fork_world
from accelerate.test_utils.threaded import fake_world, thread_world, watch_collectives

__all__ = ["ForkedWorld", "Outcome", "RanksFailedError", "fork_process", "fork_world", "run_world", "watch_collectives"]

Value = TypeVar("Value")


def run_world(
    fn: Callable[[int, int], Value],
    n: int = 2,
    how: Literal["threads", "fork", "fake"] = "threads",
    timeout: float = 60.0,
    *,
    init: bool = True,
    env: Mapping[str, str] | None = None,
    num_nodes: int = 1,
    linger: bool = True,
    grace: float = GRACE,
) -> list[Value]:
    """What ``fn(rank, n)`` returned on each of ``n`` ranks, rank by rank.

    ``fn`` may be a closure; from a fork its value must be picklable. ``init``, ``env``, ``linger`` and ``grace`` are
    for forks, see :func:`fork_world`. Times in seconds.

    Raises:
        RanksFailedError: a rank raised, died or hung; each is named with its traceback or stacks.
    """
    if n < 1 or n % num_nodes:
        raise ValueError(f"{n} ranks cannot be shared out over {num_nodes} machines: give each the same number.")
    if how == "fork":
        world = fork_world(fn, n, timeout=timeout, init=init, env=env, num_nodes=num_nodes, linger=linger, grace=grace)
        return world.results()
    if not init or env:
        raise ValueError(f"how={how!r} shares one environment and has its group from the start: use how='fork'.")
    if how == "threads":
        return thread_world(fn, n, timeout, num_nodes)
    return fake_world(fn, n, num_nodes)
