"""The harness itself: what a rank sees, and what is said of one that fails."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from accelerate import runtime
from accelerate.test_utils.world import RanksFailedError, fork_process, fork_world, run_world


def gather(rank: int, n: int) -> tuple[float, list[int]]:
    total = torch.ones(1) * rank
    dist.all_reduce(total)
    box: list[int] = [0] * n
    dist.all_gather_object(box, rank * 10)
    return total.item(), box


def ddp_gradient(rank: int, n: int) -> float:
    model = DistributedDataParallel(nn.Linear(2, 1))
    model(torch.ones(1, 2) * (rank + 1)).sum().backward()
    return model.module.weight.grad[0, 0].item()


@pytest.mark.parametrize("how", ["threads", "fork"])
@pytest.mark.parametrize("n", [1, 3])
def test_values_are_real(how: str, n: int) -> None:
    assert run_world(gather, n, how) == [(sum(range(n)), [rank * 10 for rank in range(n)])] * n
    assert run_world(ddp_gradient, n, how) == [pytest.approx((n + 1) / 2)] * n


def test_fake_ranks_see_shapes() -> None:
    def shapes(rank: int, n: int) -> tuple[int, ...]:
        mesh = init_device_mesh("cpu", (n,))
        sharded = distribute_tensor(torch.ones(n * 3, 2), mesh, [Shard(0)])
        return (*sharded.to_local().shape, dist.get_rank(), dist.get_world_size())

    assert run_world(shapes, 4, "fake") == [(3, 2, rank, 4) for rank in range(4)]


@pytest.mark.parametrize("how", ["threads", "fake"])
def test_ranks_in_one_process_are_told_their_topology(how: str) -> None:
    def told(rank: int, n: int) -> tuple[int, int, int, int, int]:
        topology = runtime.slots().topology
        return topology.rank, topology.world_size, topology.local_rank, topology.node_rank, topology.num_nodes

    assert run_world(told, 4, how, num_nodes=2) == [(0, 4, 0, 0, 2), (1, 4, 1, 0, 2), (2, 4, 0, 1, 2), (3, 4, 1, 1, 2)]


def test_forked_ranks_have_the_environment_of_a_launcher() -> None:
    def own_group(rank: int, n: int) -> tuple[int, int, str, str, str]:
        assert not dist.is_initialized()
        dist.init_process_group("gloo")
        dist.barrier()
        names = ("LOCAL_RANK", "GROUP_RANK", "EXTRA")
        return (dist.get_rank(), dist.get_world_size(), *(os.environ[name] for name in names))

    found = run_world(own_group, 4, "fork", init=False, env={"EXTRA": "e"}, num_nodes=2)
    assert found == [(0, 4, "0", "0", "e"), (1, 4, "1", "0", "e"), (2, 4, "0", "1", "e"), (3, 4, "1", "1", "e")]
    assert "RANK" not in os.environ


def test_tensors_come_back_by_value() -> None:
    [_, second] = run_world(lambda rank, n: {"big": torch.full((300_000,), float(rank))}, 2, "fork")
    assert second["big"].sum().item() == 300_000


@pytest.mark.parametrize("how", ["threads", "fork"])
def test_a_rank_that_raises_is_named_with_its_line(how: str) -> None:
    def second_raises(rank: int, n: int) -> None:
        if rank == 1:
            raise KeyError("no such thing")
        dist.barrier()

    with pytest.raises(
        RanksFailedError, match=r"rank 1 raised:\n(.|\n)*in second_raises\n(.|\n)*no such thing"
    ) as caught:
        run_world(second_raises, 2, how)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("how", ["threads", "fork"])
def test_a_rank_that_hangs_is_named_with_its_stack(how: str) -> None:
    released = threading.Event()

    def second_sleeps(rank: int, n: int) -> int:
        if rank == 1:
            released.wait(600)
        return rank

    with pytest.raises(RanksFailedError, match=r"rank 1 did not end in time(.|\n)*second_sleeps") as caught:
        run_world(second_sleeps, 2, how, timeout=4)
    assert "ranks that returned: [0]" in str(caught.value)
    released.set()


def test_a_rank_that_dies_is_named_with_its_signal() -> None:
    def second_dies(rank: int, n: int) -> None:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(RanksFailedError, match="rank 1 was ended by SIGKILL"):
        run_world(second_dies, 2, "fork")


def test_ranks_can_be_killed_from_outside() -> None:
    with fork_world(lambda rank, n: time.sleep(600 * rank), 2, init=False) as world:
        world.kill(1, signal.SIGTERM)
        outcomes = world.outcomes()
    assert [(outcome.ended, outcome.exitcode) for outcome in outcomes] == [
        ("returned", None),
        ("died", -signal.SIGTERM),
    ]


def test_one_process_can_be_killed() -> None:
    with fork_process(lambda: time.sleep(600)) as process:
        process.kill()
        [outcome] = process.outcomes()
    assert (outcome.ended, outcome.exitcode) == ("died", -signal.SIGKILL)


def test_leaving_a_world_ends_what_runs() -> None:
    with fork_world(lambda rank, n: time.sleep(600), 2) as world:
        pids = world.pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_ranks_have_to_fit_the_machines() -> None:
    with pytest.raises(ValueError, match="3 ranks cannot be shared out over 2 machines"):
        run_world(gather, 3, num_nodes=2)


def test_threads_cannot_have_an_environment_each() -> None:
    with pytest.raises(ValueError, match="use how='fork'"):
        run_world(gather, 2, "threads", env={"A": "b"})
