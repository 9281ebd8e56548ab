"""The state of several processes: one group, the main process first, timeouts, and who is told what."""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from accelerate import env, runtime
from accelerate.comm.connection import JobCollectives
from accelerate.comm.control import timeout_of
from accelerate.comm.operations import gather
from accelerate.config.enums import DistributedType
from accelerate.errors import CollectiveError, StateError, TopologyError
from accelerate.state import PartialState
from accelerate.test_utils.world import fork_world, run_world


class UserError(Exception):
    """An error whose constructor takes more than a message, so that it does not pickle."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> Any:
        raise TypeError("no")


def test_the_group_is_made_once_from_the_environment() -> None:
    def made(rank: int, n: int) -> dict[str, Any]:
        assert not dist.is_initialized()
        held = PartialState(timeout=timedelta(seconds=33))
        assert PartialState().process_index == rank
        assert isinstance(runtime.current().collectives, JobCollectives)
        assert timeout_of(dist.group.WORLD) == timedelta(seconds=33)
        assert "control" in vars(runtime.current().collectives)  # made at once, as every rank is there
        assert held.use_distributed and held.is_last_process == (rank == n - 1)
        return {**PartialState._shared_state, "size": dist.get_world_size()}

    for rank, found in enumerate(run_world(made, 3, "fork", init=False)):
        assert found["distributed_type"] is DistributedType.MULTI_CPU and found["backend"] == "gloo"
        assert (found["num_processes"], found["process_index"], found["local_process_index"]) == (3, rank, rank)
        assert found["size"] == 3 and found["device"] == torch.device("cpu")


def test_two_machines() -> None:
    def local(rank: int, n: int) -> tuple[int, bool, bool]:
        held = PartialState()
        return held.local_process_index, held.is_local_main_process, held.is_main_process

    assert run_world(local, 4, "fork", num_nodes=2) == [
        (0, True, True),
        (1, False, False),
        (0, True, False),
        (1, False, False),
    ]


def test_a_group_that_exists_is_taken_and_its_control_group_waits_for_the_first_call() -> None:
    def taken(rank: int, n: int) -> None:
        group = dist.group.WORLD
        held = PartialState()
        found = runtime.current().collectives
        assert isinstance(found, JobCollectives) and found.group is group
        assert "control" not in vars(found)
        held.wait_for_everyone()
        assert "control" in vars(found)

    run_world(taken, 2, "fork")


def test_a_job_of_one_has_a_group_for_those_who_need_one() -> None:
    def alone(rank: int, n: int) -> None:
        held = PartialState()
        assert dist.is_initialized() and held.num_processes == 1
        assert held.distributed_type is DistributedType.NO and held.backend is None and not held.use_distributed

    run_world(alone, 1, "fork", init=False)


def notices(rank: int, n: int, **arguments: Any) -> list[str]:
    """What was logged while the state was set up, and that it is on gloo."""
    told: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("accelerate").addHandler(handler)
    assert PartialState(**arguments).backend == "gloo"
    PartialState()
    return told


def test_a_gpu_backend_on_a_machine_without_one_is_gloo_with_one_notice() -> None:
    def asked(rank: int, n: int) -> list[str]:
        return notices(rank, n, backend="nccl")

    wanted = "2 processes train on the cpu over gloo: no accelerator was found on this machine."
    assert run_world(asked, 2, "fork", init=False) == [[wanted], []]
    assert run_world(notices, 2, "fork", init=False) == [[wanted], []]


def test_the_cpu_on_purpose_needs_no_notice() -> None:
    assert run_world(lambda rank, n: notices(rank, n, cpu=True), 2, "fork", init=False) == [[], []]
    assert run_world(notices, 2, "fork", init=False, env={"ACCELERATE_USE_CPU": "true"}) == [[], []]


def test_a_gpu_backend_for_the_cpu_on_purpose_is_said() -> None:
    found = run_world(lambda rank, n: notices(rank, n, cpu=True, backend="nccl"), 2, "fork", init=False)
    assert found == [["2 processes train on the cpu over gloo: the backend nccl cannot send from the cpu."], []]


def test_an_unknown_backend() -> None:
    def asked(rank: int, n: int) -> None:
        with pytest.raises(TopologyError, match="backend 'mpi' was asked for, but this build of torch has not got it"):
            PartialState(backend="mpi")

    run_world(asked, 2, "fork", init=False)


def test_a_group_that_contradicts_the_environment() -> None:
    def contradicting(rank: int, n: int) -> None:
        with pytest.raises(TopologyError, match=r"rank \d of 2, the environment .torchrun. says rank 0 of 3"):
            PartialState()

    def late(rank: int, n: int) -> None:
        env.put("WORLD_SIZE", 3)
        env.put("RANK", 0)
        contradicting(rank, n)

    run_world(late, 2, "fork")


def test_a_timeout_asked_for_later_is_applied() -> None:
    def later(rank: int, n: int) -> None:
        PartialState(timeout=timedelta(seconds=77))
        assert timeout_of(dist.group.WORLD) == timedelta(seconds=77)
        PartialState(timeout=timedelta(seconds=88))
        assert timeout_of(dist.group.WORLD) == timedelta(seconds=88)

    run_world(later, 2, "fork")


def test_a_timeout_that_cannot_be_applied_says_where_it_belongs() -> None:
    def later(rank: int, n: int) -> None:
        with pytest.raises(
            StateError, match=r"timeout=0:01:17 .* 'threaded' cannot change it .*InitProcessGroupKwargs"
        ):
            PartialState(timeout=timedelta(seconds=77))

    run_world(later, 2, "threads")


def test_the_timeout_really_ends_a_wait() -> None:
    def wait(rank: int, n: int) -> str:
        held = PartialState(timeout=timedelta(seconds=3))
        held.wait_for_everyone()
        if rank == 1:
            time.sleep(5)
            return ""
        with pytest.raises(CollectiveError) as caught:
            held.wait_for_everyone()
        return str(caught.value)

    outcomes = fork_world(wait, 2, init=False, env={"ACCELERATE_HANG_TIMEOUT": "0"}, linger=False).outcomes()
    assert "for as long as InitProcessGroupKwargs(timeout=...) allows" in outcomes[0].value


@pytest.mark.parametrize("how", ["threads", "fork"])
def test_the_main_process_goes_first(how: Any, tmp_path: Path) -> None:
    def order(rank: int, n: int) -> list[bool]:
        held, seen = PartialState(), []
        for number, block in enumerate((held.main_process_first, held.local_main_process_first)):
            mark = tmp_path / f"{how}-{number}"
            with block():
                seen.append(mark.exists())
                if rank == 0:
                    time.sleep(0.2)
                    mark.touch()
        return seen

    assert run_world(order, 3, how) == [[False, False], [True, True], [True, True]]


def test_each_machine_has_its_first(tmp_path: Path) -> None:
    def order(rank: int, n: int) -> bool:
        held = PartialState()
        mark = tmp_path / str(rank // 2)
        with held.local_main_process_first():
            seen = mark.exists()
            if held.is_local_main_process:
                time.sleep(0.2 * (1 + rank))
                mark.touch()
        return seen

    assert run_world(order, 4, "threads", num_nodes=2) == [False, True, False, True]


@pytest.mark.parametrize("how", ["threads", "fork"])
@pytest.mark.parametrize(
    "error",
    [ValueError("the data are gone"), KeyError("name"), FileNotFoundError(2, "No such file", "x"), UserError("own", 3)],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_the_main_process_is_everybodys(how: Any, error: Exception) -> None:
    def fail(rank: int, n: int) -> tuple[type, str, str]:
        held = PartialState()
        entered = False
        try:
            with held.main_process_first():
                entered = True
                if rank == 0:
                    raise error
        except Exception as caught:
            assert entered == (rank == 0)
            assert operations_still_work(rank, n)
            return type(caught), str(caught), str(caught.__cause__)
        raise AssertionError("nothing was raised")

    found = run_world(fail, 3, how)
    for rank, (kind, text, cause) in enumerate(found):
        assert kind is type(error) and text == str(error)
        if rank:
            assert cause.startswith("Rank 0 raised this at ") and "test_state.py:" in cause and " in fail, " in cause


def operations_still_work(rank: int, n: int) -> bool:
    return bool(gather(torch.tensor([rank])).tolist() == list(range(n)))


def test_the_error_comes_at_once() -> None:
    def fail(rank: int, n: int) -> float:
        held = PartialState()
        held.wait_for_everyone()
        started = time.monotonic()

        def block() -> None:
            with held.main_process_first():
                if rank == 0:
                    raise RuntimeError("no disk")

        with pytest.raises(RuntimeError, match="no disk"):
            block()
        return time.monotonic() - started

    assert max(run_world(fail, 2, "fork")) < 5


def test_leaving_the_script_on_the_main_process_leaves_it_everywhere() -> None:
    def leave(rank: int, n: int) -> int:
        with pytest.raises(SystemExit) as caught:
            with PartialState().main_process_first():
                raise SystemExit(3)
        return int(str(caught.value.code))

    assert run_world(leave, 2, "threads") == [3, 3]


def test_splitting_and_where_things_run() -> None:
    def split(rank: int, n: int) -> tuple[Any, ...]:
        held = PartialState()
        with held.split_between_processes(list(range(5)), apply_padding=True) as mine:
            ran = [
                held.on_main_process(lambda: "main")(),
                held.on_last_process(lambda: "last")(),
                held.on_process(lambda: "one", process_index=1)(),
                held.on_local_process(lambda: "local one", local_process_index=1)(),
            ]
        return mine, ran

    assert run_world(split, 3, "threads") == [
        ([0, 1], ["main", None, None, None]),
        ([2, 3], [None, None, "one", "local one"]),
        ([4, 4], [None, "last", None, None]),
    ]


def test_only_the_first_of_a_machine_prints(capfd: pytest.CaptureFixture[str]) -> None:
    def say(rank: int, n: int) -> None:
        PartialState().print(f"rank {rank}", flush=True)

    run_world(say, 4, "fork", num_nodes=2)
    assert sorted(capfd.readouterr().out.split("\n")) == ["", "rank 0", "rank 2"]


def test_leaving_the_group() -> None:
    def leave(rank: int, n: int) -> bool:
        held = PartialState()
        held.wait_for_everyone()
        held.destroy_process_group()
        held.destroy_process_group()
        assert held.process_index == rank
        return dist.is_initialized()

    assert run_world(leave, 2, "fork") == [False, False]


def test_a_reset_state_finds_its_group_and_its_watch_again() -> None:
    """Trainers reset the state whenever arguments are made: neither connections nor threads pile up."""

    def reset(rank: int, n: int) -> None:
        PartialState().wait_for_everyone()
        before = runtime.current().collectives
        threads = threading.active_count()
        for _ in range(3):
            PartialState._reset_state()
            PartialState().wait_for_everyone()
        assert runtime.current().collectives is before and threading.active_count() == threads

    run_world(reset, 2, "fork", init=False)
    run_world(reset, 2, "fork")


def test_a_new_group_after_the_first_was_left() -> None:
    def again(rank: int, n: int) -> int:
        PartialState().wait_for_everyone()
        PartialState().destroy_process_group()
        PartialState._reset_state()
        held = PartialState()
        held.wait_for_everyone()
        return threading.active_count()

    assert run_world(again, 2, "fork", init=False) == [2, 2]


def test_ranks_from_mpi_meet_over_tcp() -> None:
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    port = store.port
    del store

    def launched(rank: int, n: int) -> tuple[int, int, str, list[int]]:
        env.drop("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_USE_AGENT_STORE")
        env.publish(
            {"PMI_RANK": rank, "PMI_SIZE": n, "MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": n, "MASTER_PORT": port}
        )
        held = PartialState()
        topology = runtime.current().topology
        return held.process_index, held.num_processes, topology.source, gather(torch.tensor([rank])).tolist()

    assert run_world(launched, 2, "fork", init=False) == [(rank, 2, "mpi", [0, 1]) for rank in range(2)]


def test_a_patched_choice_of_backend_is_asked() -> None:
    """Libraries replace ``_prepare_backend`` to have the state report something else."""

    def patched(rank: int, n: int) -> DistributedType:
        PartialState._prepare_backend = lambda self, *args: (None, DistributedType.NO)  # type: ignore[method-assign]
        return PartialState().distributed_type

    assert run_world(patched, 2, "fork") == [DistributedType.NO] * 2
