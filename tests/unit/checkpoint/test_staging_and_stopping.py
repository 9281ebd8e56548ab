"""Copies for saves in the background, and signals that ask a run to stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from accelerate.checkpoint.asynchronous import in_background
from accelerate.checkpoint.parts import Piece
from accelerate.checkpoint.preempt import StopFlag, signals_asked_for
from accelerate.checkpoint.staging import Staging
from accelerate.errors import CheckpointError, ConfigError


def test_copies_do_not_change_and_keep_their_structure() -> None:
    weight, large = torch.ones(3), torch.ones(1 << 17)
    state = {
        "m": [weight, (large, 5)],
        "scalar": torch.tensor(2.0),
        "none": torch.empty(0),
        "turned": torch.ones(2, 3).t(),
    }
    pieces = [Piece(file="a", form="tensors", value=state), Piece(file="b", form="object", value={"lr": [0.1]})]
    taken = Staging().take(pieces)
    weight.zero_()
    large.zero_()
    found = taken[0].value
    assert found["m"][0].tolist() == [1, 1, 1]
    assert found["m"][1][0].sum().item() == 1 << 17
    assert found["m"][1][1] == 5
    assert found["scalar"].item() == 2.0
    assert found["none"].shape == (0,)
    assert torch.equal(found["turned"], torch.ones(3, 2))
    assert taken[1].value == {"lr": [0.1]}


def test_plain_values_are_taken_as_they_were() -> None:
    groups: dict[str, Any] = {"lr": [0.1]}
    taken = Staging().take([Piece(file="b", form="object", value=groups)])
    groups["lr"].append(0.2)
    assert taken[0].value == {"lr": [0.1]}


def test_tied_tensors_stay_tied_and_the_memory_is_used_again() -> None:
    staging, weight = Staging(), torch.ones(100)
    first = staging.take([Piece(file="a", form="object", value={"x": weight, "y": weight})])[0].value
    assert first["x"].data_ptr() == first["y"].data_ptr()
    second = staging.take([Piece(file="a", form="object", value={"x": weight, "y": weight})])[0].value
    assert second["x"].data_ptr() == first["x"].data_ptr()
    staging.release()


def test_work_in_the_background_is_waited_for_and_its_error_told_once() -> None:
    go = threading.Event()
    save = in_background("folder", go.wait)
    assert not save.done()
    with pytest.raises(TimeoutError, match="goes on"):
        save.wait(timeout=0.01)
    go.set()
    assert save.wait() == "folder"

    def fail() -> None:
        raise OSError("no space")

    failed = in_background("folder", fail)
    with pytest.raises(CheckpointError, match="no space"):
        failed.wait()
    assert failed.wait() == "folder"


def test_the_interpreter_waits_for_a_save(tmp_path: Any) -> None:
    child = os.fork()
    if child == 0:
        release = threading.Event()
        in_background("f", lambda: (release.wait(0.2), (tmp_path / "done").touch()))
        # What the interpreter does when the main thread has come to its end.
        threading._shutdown()  # type: ignore[attr-defined]
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "done").exists()


@pytest.fixture
def flag() -> Iterator[StopFlag]:
    made = StopFlag()
    yield made
    made.restore()


def test_a_signal_raises_the_flag_and_nothing_else(flag: StopFlag) -> None:
    assert flag.watch([signal.SIGTERM, signal.SIGUSR1])
    assert not flag.agreed()
    os.kill(os.getpid(), signal.SIGTERM)
    assert flag.agreed()
    flag.restore()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_that_was_there_is_called_too(flag: StopFlag) -> None:
    called: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: called.append(number))
    try:
        flag.watch([signal.SIGUSR1])
        flag.watch([signal.SIGUSR1])
        os.kill(os.getpid(), signal.SIGUSR1)
        assert called == [signal.SIGUSR1]
        assert flag.raised
    finally:
        flag.restore()
        signal.signal(signal.SIGUSR1, before)


def test_another_thread_cannot_handle_signals(flag: StopFlag) -> None:
    told: list[bool] = []
    thread = threading.Thread(target=lambda: told.append(flag.watch([signal.SIGUSR1])))
    thread.start()
    thread.join()
    assert told == [False]


def test_which_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert signals_asked_for() == [signal.SIGTERM, signal.SIGUSR1]
    assert signals_asked_for(["usr2"]) == [signal.SIGUSR2]
    monkeypatch.setenv("ACCELERATE_PREEMPTION_SIGNALS", "SIGUSR2, term")
    assert signals_asked_for() == [signal.SIGUSR2, signal.SIGTERM]
    monkeypatch.setenv("ACCELERATE_PREEMPTION_SIGNALS", "SIGNOSUCH")
    with pytest.raises(ConfigError, match="SIGNOSUCH"):
        signals_asked_for()
