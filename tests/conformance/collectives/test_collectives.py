"""What every implementation of :class:`accelerate.comm.base.Collectives` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from accelerate import runtime
from accelerate.comm.base import Collectives
from accelerate.comm.connection import JobCollectives
from accelerate.comm.group import ProcessGroupCollectives
from accelerate.comm.solo import SoloCollectives
from accelerate.state import PartialState
from accelerate.test_utils.world import run_world

Make = Callable[[], Collectives]

DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
)


def job() -> Collectives:
    PartialState()
    return runtime.current().collectives


def control() -> Collectives:
    group = job()
    assert isinstance(group, JobCollectives)
    found = group.control
    assert found is not group
    return found


def plain() -> Collectives:
    return ProcessGroupCollectives(dist.group.WORLD)


GROUPS = [
    pytest.param(SoloCollectives, 1, "", id="solo"),
    pytest.param(plain, 2, "threads", id="group-threads"),
    pytest.param(job, 3, "threads", id="job-threads"),
    pytest.param(plain, 2, "fork", id="group-gloo"),
    pytest.param(job, 2, "fork", id="job-gloo"),
    pytest.param(control, 3, "fork", id="control-gloo"),
]


def everywhere(make: Make, n: int, how: str, check: Callable[[Collectives], Any]) -> list[Any]:
    if not how:
        return [check(make())]
    return run_world(lambda rank, n: check(make()), n, how)  # type: ignore[arg-type]


@pytest.mark.parametrize(("make", "n", "how"), GROUPS)
def test_the_seam(make: Make, n: int, how: str) -> None:
    """One world a group, as forking is what costs."""

    def check(group: Collectives) -> list[int]:
        assert isinstance(group, Collectives)
        assert group.size == n
        for part in (gathers, reduces, broadcasts, exchanges_objects, leaves_arguments_alone):
            part(group)
        group.barrier()
        return [group.rank]

    assert everywhere(make, n, how, check) == [[rank] for rank in range(n)]


def gathers(group: Collectives) -> None:
    for dtype in DTYPES:
        tensor = torch.tensor([[group.rank, 1, 0]], dtype=torch.float32).to(dtype)
        rows = group.all_gather(tensor)
        assert rows.shape == (group.size, 1, 3)
        assert rows.dtype is dtype
        wanted = torch.tensor([[[rank, 1, 0]] for rank in range(group.size)], dtype=torch.float32).to(dtype)
        assert torch.equal(rows.view(torch.uint8), wanted.view(torch.uint8))
    assert group.all_gather(torch.tensor(group.rank)).tolist() == list(range(group.size))
    assert group.all_gather(torch.empty(0, 2)).shape == (group.size, 0, 2)
    transposed = torch.arange(4).view(2, 2).t()
    assert torch.equal(group.all_gather(transposed)[0], transposed)
    assert not group.all_gather(torch.ones(1, requires_grad=True)).requires_grad


def reduces(group: Collectives) -> None:
    ranks = list(range(group.size))
    tensor = torch.tensor([float(group.rank)])
    for op, value in (("sum", sum(ranks)), ("mean", sum(ranks) / len(ranks)), ("min", 0), ("max", ranks[-1])):
        assert group.all_reduce(tensor, op).tolist() == [value]
    if group.size > 1:
        with pytest.raises(ValueError, match="median"):
            group.all_reduce(tensor, "median")
        assert group.all_reduce(torch.tensor([True])).tolist() == [group.size]


def broadcasts(group: Collectives) -> None:
    src = group.size - 1
    for dtype in DTYPES:
        sent = group.broadcast(torch.tensor([[group.rank]], dtype=torch.float32).to(dtype), src)
        assert torch.equal(
            sent.float() if not dtype.is_complex else sent.real, torch.tensor([[float(src)]]).to(dtype).real.float()
        )
    assert group.broadcast(torch.tensor(group.rank), src).item() == src


def exchanges_objects(group: Collectives) -> None:
    mine = {"rank": group.rank, "text": "x" * 1000 * group.rank}
    found = group.all_gather_object(mine)
    assert [item["rank"] for item in found] == list(range(group.size))
    assert [len(item["text"]) for item in found] == [1000 * rank for rank in range(group.size)]
    assert group.broadcast_objects([group.rank, "b"], group.size - 1) == [group.size - 1, "b"]


def leaves_arguments_alone(group: Collectives) -> None:
    tensor = torch.tensor([float(group.rank)])
    for result in (group.all_reduce(tensor), group.broadcast(tensor), group.all_gather(tensor)):
        result.fill_(7)
        assert tensor.item() == group.rank
