"""Collective operations on nested data: right values, and an error on every rank where the ranks disagree."""

from __future__ import annotations

import warnings
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch

from accelerate.comm import operations
from accelerate.comm.operations import CannotPadNestedTensorWarning
from accelerate.errors import CollectiveError
from accelerate.state import PartialState
from accelerate.test_utils.world import run_world

Pair = namedtuple("Pair", "left right")

pytestmark = pytest.mark.parametrize(("n", "how"), [(2, "threads"), (4, "threads"), (2, "fork")])


def world(fn: Callable[[int, int], Any], n: int, how: Any) -> list[Any]:
    def in_state(rank: int, n: int) -> Any:
        PartialState()
        return fn(rank, n)

    return run_world(in_state, n, how)


def refused(call: Callable[[], Any], error: type[Exception] = CollectiveError) -> str:
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    return str(caught.value)


def test_gather(n: int, how: str) -> None:
    def gather(rank: int, n: int) -> None:
        data = {
            "pair": Pair(torch.tensor([[rank, 1]]), [torch.tensor([rank % 2 == 0])]),
            "scalar": torch.tensor(float(rank)),
            "nothing": None,
            "half": torch.full((3,), rank, dtype=torch.bfloat16, requires_grad=True),
            "empty": torch.empty(0, 2),
            "complex": torch.tensor([rank + 1j]).conj(),
        }
        result = operations.gather(data)
        assert list(result) == list(data)
        assert type(result["pair"]) is Pair
        assert result["pair"].left.tolist() == [[other, 1] for other in range(n)]
        assert result["pair"].right[0].tolist() == [other % 2 == 0 for other in range(n)]
        assert result["scalar"].tolist() == list(range(n))
        assert result["nothing"] is None
        assert result["half"].dtype is torch.bfloat16 and not result["half"].requires_grad
        assert result["half"].tolist() == [other for other in range(n) for _ in range(3)]
        assert result["empty"].shape == (0, 2)
        assert result["complex"].tolist() == [other - 1j for other in range(n)]

    world(gather, n, how)


def test_gather_of_large_and_small_tensors(n: int, how: str) -> None:
    """More than fits into a frame: some travel alone, some together, and dtypes of any width stay whole."""

    def gather(rank: int, n: int) -> None:
        large = torch.arange(40_000, dtype=torch.float64).view(200, 200) + rank
        small = torch.arange(5_000, dtype=torch.int32) * rank
        odd = torch.full((7,), rank, dtype=torch.uint8)
        found = operations.gather((large, odd, small, torch.tensor(rank)))
        assert torch.equal(found[0], torch.cat([large - rank + other for other in range(n)]))
        assert found[1].tolist() == [other for other in range(n) for _ in range(7)]
        assert torch.equal(found[2], torch.cat([torch.arange(5_000, dtype=torch.int32) * other for other in range(n)]))
        assert found[3].tolist() == list(range(n))

    world(gather, n, how)


def test_results_do_not_share_memory_with_the_next_call(n: int, how: str) -> None:
    def twice(rank: int, n: int) -> None:
        first = operations.gather(torch.tensor([rank]))
        operations.gather(torch.tensor([-1]))
        assert first.tolist() == list(range(n))

    world(twice, n, how)


@pytest.mark.parametrize(
    "differing",
    [
        pytest.param(lambda rank: torch.ones(1 + rank), id="shape"),
        pytest.param(lambda rank: torch.ones(2, 1 + rank), id="second dimension"),
        pytest.param(lambda rank: torch.ones(2, dtype=torch.float32 if rank else torch.float64), id="dtype"),
        pytest.param(lambda rank: torch.ones(1, dtype=torch.int32) if rank else torch.ones(1), id="same size"),
        pytest.param(lambda rank: {"a" if rank else "b": torch.ones(1)}, id="keys"),
        pytest.param(lambda rank: [torch.ones(1)] * (1 + rank), id="length"),
        pytest.param(lambda rank: torch.ones(100_000 if rank else 1), id="large and small"),
        pytest.param(lambda rank: [torch.ones(1), None if rank else torch.ones(1)], id="none"),
    ],
)
def test_gather_of_different_data_is_an_error_on_every_rank(n: int, how: str, differing: Any) -> None:
    def gather(rank: int, n: int) -> str:
        text = refused(lambda: operations.gather(differing(rank)))
        assert operations.gather(torch.tensor([rank])).tolist() == list(range(n))  # and life goes on
        return text

    told = world(gather, n, how)
    for rank, text in enumerate(told):
        assert f"This is rank {rank}." in text
        assert "gather() with data that differs" in text
        assert "pad_across_processes" in text
        for other in range(n):
            assert f"rank {other}: gather(" in text
        assert f"{__file__}:" in text


def test_the_error_shows_each_ranks_shapes(n: int, how: str) -> None:
    def gather(rank: int, n: int) -> str:
        return refused(lambda: operations.gather({"x": torch.ones(1 + rank, 2), "y": None}))

    assert "rank 1: gather({'x': float32[2, 2], 'y': None}) at" in world(gather, n, how)[0]


def test_different_calls_are_an_error_on_every_rank(n: int, how: str) -> None:
    def cross(rank: int, n: int) -> str:
        call = operations.barrier if rank == 1 else lambda: operations.gather(torch.ones(1))
        return refused(call)

    for text in world(cross, n, how):
        assert "different collective calls" in text
        assert "rank 1: wait_for_everyone()" in text and "rank 0: gather(float32[1])" in text


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (["text"], "a str is among them"),
        (torch.ones(2, 2).to_sparse(), "sparse"),
        (torch.ones(1, device="meta"), "meta"),
    ],
)
def test_what_cannot_be_sent(n: int, how: str, data: Any, named: str) -> None:
    def everywhere(rank: int, n: int) -> str:
        return refused(lambda: operations.gather(data), TypeError)

    def on_one(rank: int, n: int) -> str:
        return refused(
            lambda: operations.gather(data if rank else torch.ones(1)), TypeError if rank else CollectiveError
        )

    for text in world(everywhere, n, how):
        assert named in text
    first = world(on_one, n, how)[0]
    assert "could not take part in gather()" in first and named in first


@pytest.mark.parametrize("columns", [1, 3, 3000])
def test_gather_uneven_of_any_size(n: int, how: str, columns: int) -> None:
    """Inside a frame, too large for one, and too large on one rank only (columns = 3 and a long tensor there)."""

    def gather(rank: int, n: int) -> None:
        rows = 2 * rank + (columns == 3 and rank == 1) * 1000
        data = {
            "x": torch.full((rows, columns), float(rank)),
            "flag": torch.full((1 + rank,), rank == 0),
            "label": torch.arange(3, dtype=torch.int16) + rank,
            "pair": (torch.tensor(float(rank), dtype=torch.float64), None),
        }
        found = operations.gather_uneven(data)
        wanted = [other for other in range(n) for _ in range(2 * other + (columns == 3 and other == 1) * 1000)]
        assert found["x"].shape == (len(wanted), columns) and found["x"][:, -1].tolist() == wanted
        assert found["flag"].tolist() == [other == 0 for other in range(n) for _ in range(1 + other)]
        assert found["label"].tolist() == [i + other for other in range(n) for i in range(3)]
        assert found["pair"][0].tolist() == list(range(n)) and found["pair"][1] is None
        assert found["label"].dtype is torch.int16

    world(gather, n, how)


def test_gather_uneven_of_equal_tensors_is_gather(n: int, how: str) -> None:
    def gather(rank: int, n: int) -> None:
        data = [torch.randn(3, 2), torch.tensor([rank] * 4), torch.ones(200, 300)]
        for part in (data[:2], data):
            for one, other in zip(operations.gather_uneven(part), operations.gather(part), strict=True):
                assert torch.equal(one, other)
        many = [torch.tensor([rank]) for _ in range(600)]
        assert operations.gather_uneven(many)[599].tolist() == list(range(n))

    world(gather, n, how)


def test_gather_uneven(n: int, how: str) -> None:
    def gather(rank: int, n: int) -> None:
        found = operations.gather_uneven({"x": torch.full((rank, 2), rank), "scalar": torch.tensor(rank)})
        assert found["x"].tolist() == [[other, other] for other in range(n) for _ in range(other)]
        assert found["scalar"].tolist() == list(range(n))
        assert "differs" in refused(lambda: operations.gather_uneven(torch.ones(2, 1 + rank)))

    world(gather, n, how)


@pytest.mark.parametrize("size", [1, 5000])
def test_reduce(n: int, how: str, size: int) -> None:
    def reduce(rank: int, n: int) -> None:
        data = {"f": torch.full((size,), float(rank)), "i": torch.full((size,), rank), "s": torch.tensor(float(rank))}
        total = sum(range(n))
        assert operations.reduce(data, "sum")["i"].unique().tolist() == [total]
        mean = operations.reduce(data)
        assert mean["f"].unique().tolist() == [total / n] and mean["i"].dtype is torch.float32
        assert mean["s"].shape == () and mean["s"].item() == total / n
        assert operations.reduce(data, "max")["f"][0].item() == n - 1
        assert operations.reduce(data, "sum", scale=2.0)["f"][0].item() == 2 * total
        assert operations.reduce(data, "none")["s"] is data["s"]
        assert data["f"][0].item() == rank
        assert "median" in refused(lambda: operations.reduce(data, "median"), ValueError)
        assert "differs" in refused(lambda: operations.reduce(torch.ones(size + rank)))

    world(reduce, n, how)


def test_every_rank_gets_the_same_bits(n: int, how: str) -> None:
    def reduce(rank: int, n: int) -> list[float]:
        torch.manual_seed(0)
        values = torch.randn(n, 100)[rank] * 10.0**rank
        return operations.reduce(values, "mean").tolist()  # type: ignore[no-any-return]

    found = world(reduce, n, "fork" if how == "fork" else "threads")
    assert all(values == found[0] for values in found)


@pytest.mark.parametrize("size", [1, 5000])
def test_broadcast_is_in_place(n: int, how: str, size: int) -> None:
    def broadcast(rank: int, n: int) -> None:
        weight = torch.nn.Parameter(torch.full((size,), float(rank)))
        data = {"w": weight, "b": torch.tensor(rank == 1)}
        result = operations.broadcast(data, from_process=1)
        assert result is data and weight[0].item() == 1.0 and weight[-1].item() == 1.0 and weight.requires_grad
        assert data["b"].item() is True
        assert "from_process=9" in refused(lambda: operations.broadcast(weight, 9), ValueError)
        assert "differs" in refused(lambda: operations.broadcast(torch.ones(size + rank)))

    world(broadcast, n, how)


@pytest.mark.parametrize("size", [1, 5000])
def test_objects(n: int, how: str, size: int) -> None:
    def objects(rank: int, n: int) -> None:
        text = "x" * size * rank
        assert operations.gather_object([rank, text]) == [x for other in range(n) for x in (other, "x" * size * other)]
        assert operations.gather_object({"rank": rank}) == [{"rank": other} for other in range(n)]
        assert operations.gather_object(text) == ["x" * size * other for other in range(n)]
        held = [rank, {"text": text}]
        assert operations.broadcast_object_list(held, from_process=1) is held
        assert held == [1, {"text": "x" * size}]
        assert "a list of" in refused(lambda: operations.broadcast_object_list([0] * (1 + rank)))

    world(objects, n, how)


def test_an_object_that_does_not_pickle_on_one_rank(n: int, how: str) -> None:
    class Stubborn:
        def __reduce__(self) -> Any:
            raise ValueError("I stay here")

    def objects(rank: int, n: int) -> str:
        mine = Stubborn() if rank == 1 else 1
        return refused(lambda: operations.gather_object([mine]), ValueError if rank == 1 else CollectiveError)

    told = world(objects, n, how)
    assert told[1] == "I stay here"
    assert "Rank 1 could not take part in gather_object()" in told[0] and "I stay here" in told[0]


def test_pad(n: int, how: str) -> None:
    def pad(rank: int, n: int) -> None:
        data = {"x": torch.full((1 + rank, 2), rank), "scalar": torch.tensor(1), "same": torch.ones(3)}
        result = operations.pad_across_processes(data, pad_index=-1)
        assert result["x"].tolist() == [[rank, rank]] * (1 + rank) + [[-1, -1]] * (n - 1 - rank)
        assert result["scalar"] is data["scalar"] and result["same"] is data["same"]
        front = operations.pad_across_processes(torch.full((1 + rank,), rank), pad_first=True)
        assert front.tolist() == [0] * (n - 1 - rank) + [rank] * (1 + rank)
        last = operations.pad_across_processes(torch.ones(2, 1 + rank), dim=-1, pad_index=5)
        assert last.tolist() == [[1.0] * (1 + rank) + [5.0] * (n - 1 - rank)] * 2
        assert "differs" in refused(lambda: operations.pad_across_processes(torch.ones([1] * (1 + rank))))
        assert operations.gather(result)["x"].shape == (n * n, 2)

    world(pad, n, how)


def test_nested_tensors_are_left_alone(n: int, how: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that its nested tensors are a prototype
        nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])

    def pad(rank: int, n: int) -> bool:
        return operations.pad_across_processes([nested])[0] is nested

    if how == "fork":

        def warned(rank: int, n: int) -> bool:
            with pytest.warns(CannotPadNestedTensorWarning):
                return pad(rank, n)

        assert all(world(warned, n, how))
        return
    with warnings.catch_warnings():  # filters are shared by threads
        warnings.simplefilter("ignore", CannotPadNestedTensorWarning)
        assert all(world(pad, n, how))


def test_copy_tensor_to_devices(n: int, how: str) -> None:
    def copy(rank: int, n: int) -> None:
        found = operations.copy_tensor_to_devices(torch.arange(3) if rank == n - 1 else None)
        assert found.tolist() == [0, 1, 2]
        assert "none" in refused(lambda: operations.copy_tensor_to_devices(None), ValueError)
        assert "[0, 1" in refused(lambda: operations.copy_tensor_to_devices(torch.ones(1)), ValueError)

    world(copy, n, how)


def test_any_rank(n: int, how: str) -> None:
    def ask(rank: int, n: int) -> None:
        assert operations.any_rank(rank == 1) is True
        assert operations.any_rank(False) is False

    world(ask, n, how)


def test_without_a_state_torchs_group_is_used(n: int, how: str) -> None:
    def gather(rank: int, n: int) -> list[int]:
        return operations.gather(torch.tensor([rank])).tolist()  # type: ignore[no-any-return]

    assert run_world(gather, n, how) == [list(range(n))] * n  # type: ignore[arg-type]
