"""Batch sizes that shrink until they fit."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from accelerate.comm.retry import find_executable_batch_size

pytestmark = pytest.mark.usefixtures("fresh_state")


def out_of_memory() -> RuntimeError:
    return RuntimeError("CUDA out of memory. Tried to allocate 1 GiB")


def test_nine_tenths_at_a_time_and_each_retry_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    tried = []

    @find_executable_batch_size(starting_batch_size=20)
    def train(batch_size: int, x: int, *, y: int = 0) -> tuple[int, int, int]:
        tried.append(batch_size)
        if batch_size > 14:
            raise out_of_memory()
        return batch_size, x, y

    with caplog.at_level(logging.WARNING):
        assert train(1, y=2) == (14, 1, 2)
    assert tried == [20, 18, 16, 14]
    assert len(caplog.records) == 3
    assert caplog.messages[0] == (
        "Batch size 20 of train() does not fit into memory: CUDA out of memory. Tried to allocate 1 GiB. Next: 18."
    )
    assert train(1)[0] == 14  # begins anew
    assert train.__name__ == "train"


def test_as_a_function_with_a_rule_of_ones_own() -> None:
    sizes = iter([5, 1])

    def train(size: int) -> int:
        if size > 1:
            raise out_of_memory()
        return size

    assert (
        find_executable_batch_size(function=train, starting_batch_size=8, reduce_batch_size_fn=lambda: next(sizes))()
        == 1
    )


def test_nothing_fits() -> None:
    def train(size: int) -> None:
        raise out_of_memory()

    with pytest.raises(RuntimeError, match=r"No batch size fits into memory: train\(\) was tried from 3 down"):
        find_executable_batch_size(train, starting_batch_size=3)()


def test_other_errors_pass() -> None:
    def train(size: int) -> None:
        raise ValueError("other")

    with pytest.raises(ValueError, match="other"):
        find_executable_batch_size(train)()


def test_a_caller_that_passes_the_batch_size_too() -> None:
    def train(batch_size: int, x: int) -> None: ...

    def free(*args: Any) -> tuple[Any, ...]:
        return args

    with pytest.raises(TypeError, match=r"gets its batch size, the first argument, from find_executable.*\(x=3\)"):
        find_executable_batch_size(train)(8, 3)
    with pytest.raises(TypeError, match="without one"):
        find_executable_batch_size(lambda: None)()
    assert find_executable_batch_size(free, starting_batch_size=2)(8, 3) == (2, 8, 3)


def test_the_failed_attempts_tensors_are_let_go() -> None:
    import weakref

    held: list[weakref.ref[torch.Tensor]] = []

    @find_executable_batch_size(starting_batch_size=2)
    def train(batch_size: int) -> int:
        if batch_size == 2:
            tensor = torch.ones(1)
            held.append(weakref.ref(tensor))
            raise out_of_memory()
        assert held[0]() is None
        return batch_size

    assert train() == 1
