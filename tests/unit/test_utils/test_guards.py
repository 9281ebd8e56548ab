"""Each guard of tests/guards.py sees what it is there for, and puts it right."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import guards
from accelerate import runtime


def after(guard: Callable[[], Iterator[list[str]]], act: Callable[[], object]) -> list[str]:
    watching = guard()
    next(watching)
    act()
    return next(watching)


@pytest.mark.parametrize("guard", guards.GUARDS)
def test_nothing_done_nothing_found(guard: guards.Guard) -> None:
    assert after(guard, lambda: None) == []


def test_environment_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOUSE_OLD", "1")

    def act() -> None:
        os.environ["HOUSE_NEW"] = "x"
        os.environ["HOUSE_OLD"] = "2"

    found = after(guards.environment, act)
    assert found == [
        "environment: HOUSE_NEW was None, is 'x'",
        "environment: HOUSE_OLD was '1', is '2'",
    ]
    assert os.environ["HOUSE_OLD"] == "1"
    assert "HOUSE_NEW" not in os.environ


def test_thread_that_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "THREAD_GRACE", 0.01)
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="left-over")
    try:
        assert after(guards.threads, thread.start) == ["thread: 'left-over' still runs"]
    finally:
        stop.set()
        thread.join()


def test_thread_that_ends_soon_is_waited_for() -> None:
    assert after(guards.threads, threading.Timer(0.05, lambda: None).start) == []


def test_open_process_group() -> None:
    hook = sys.excepthook
    store = dist.HashStore()
    found = after(guards.process_group, lambda: dist.init_process_group("gloo", rank=0, world_size=1, store=store))
    sys.excepthook = hook
    assert found == ["process group: gloo of 1 is still open"]
    assert not dist.is_initialized()


def test_state_left() -> None:
    found = after(guards.job, lambda: runtime.slots().partial.update(device="cpu"))
    assert len(found) == 1
    assert found[0].startswith("state: partial is still set")
    assert runtime.slots().partial == {}


def test_file_left_in_the_working_directory() -> None:
    def act() -> None:
        Path("left.txt").write_text("x")
        Path("left-folder").mkdir()

    found = after(guards.folder, act)
    assert [line.split()[1] for line in found] == ["left-folder", "left.txt"]
    assert os.listdir() == []


def test_hook_of_the_interpreter() -> None:
    hook = sys.excepthook

    def act() -> None:
        sys.excepthook = lambda *_: None

    assert len(after(guards.interpreter, act)) == 1
    assert sys.excepthook is hook


def test_setting_of_torch() -> None:
    found = after(guards.torch_settings, lambda: torch.set_default_dtype(torch.float64))
    assert found == ["torch: default dtype was torch.float32, is torch.float64"]
    assert torch.get_default_dtype() is torch.float32


def test_a_leaking_test_fails(pytester: pytest.Pytester) -> None:
    here = Path(guards.__file__).parent
    pytester.makeconftest((here / "conftest.py").read_text().replace('pytest_plugins = ["pytester"]', ""))
    pytester.makepyfile(
        """
        import os

        def test_leaks():
            os.environ["HOUSE_LEAK"] = "1"

        def test_next():
            assert "HOUSE_LEAK" not in os.environ
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:cacheprovider", "-o", f"pythonpath={here}")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*HOUSE_LEAK was None, is '1'*"])
