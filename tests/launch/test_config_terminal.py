"""``accelerate config`` on a real pseudo-terminal: arrow keys, typed answers, Ctrl-C."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml


class Terminal:
    """A child process on a pseudo-terminal."""

    def __init__(self, words: list[str]) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            start_new_session=True,
        )
        os.close(slave)
        self.screen, self.at = "", 0

    def wait_for(self, *texts: str, seconds: float = 30) -> str:
        """Reads on from what was seen last until one of ``texts`` is there; gives that one."""
        end = time.monotonic() + seconds
        while True:
            places = {self.screen.find(text, self.at): text for text in texts}
            found = min((place for place in places if place >= 0), default=-1)
            if found >= 0:
                self.at = found + len(places[found])
                return places[found]
            ready, _, _ = select.select([self.master], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"none of {texts} appeared in {self.screen[self.at :]!r}"
            try:
                read = os.read(self.master, 4096)
            except OSError:
                read = b""
            assert read, f"the program left before any of {texts} appeared: {self.screen!r}"
            self.screen += read.decode(errors="replace")

    def send(self, keys: str) -> None:
        os.write(self.master, keys.encode())


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Callable[[], Terminal]]:
    started: list[Terminal] = []

    def start() -> Terminal:
        started.append(Terminal(["-m", "accelerate.cli.config", "--config_file", str(tmp_path / "c.yaml")]))
        return started[-1]

    yield start
    for terminal in started:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.master)


def test_arrow_keys_numbers_and_typed_answers(tmp_path: Path, config: Callable[[], Terminal]) -> None:
    terminal = config()
    for question, keys in [
        ("Where does the job run?", ""),
        ("Amazon SageMaker", "\x1b[B\x1b[A\r"),
        ("Which devices", ""),
        ("Apple GPU (MPS)", "4\x1b[A1\r"),
        ("How many machines? [1]", "\n"),
        ("How many processes in all? [1]", "two\n"),
        ("'two' is not a whole number", "2\n"),
        ("host file for mpirun", "\n"),
        ("Compile models", "maybe\n"),
        ("Answer y or n", "n\n"),
        ("How is the model spread", ""),
        ("DeepSpeed ZeRO", "\x1b[B\r"),
    ]:
        terminal.wait_for(question)
        time.sleep(0.1)  # the keys are read one by one once the list stands
        terminal.send(keys)
    while terminal.wait_for("Configuration written", "(arrow keys, Enter)", "] ", "? Names") != (
        "Configuration written"
    ):
        time.sleep(0.1)
        terminal.send("\r")
    assert terminal.process.wait(20) == 0
    found = yaml.safe_load((tmp_path / "c.yaml").read_text())
    assert (found["distributed_type"], found["num_processes"], found["use_cpu"]) == ("FSDP", 2, True)
    assert found["fsdp_config"]["fsdp_version"] == 2
    assert found["fsdp_config"]["fsdp_auto_wrap_policy"] == "TRANSFORMER_BASED_WRAP"


def test_ctrl_c_leaves_without_a_file_or_a_traceback(tmp_path: Path, config: Callable[[], Terminal]) -> None:
    terminal = config()
    terminal.wait_for("Amazon SageMaker")
    time.sleep(0.2)
    os.killpg(terminal.process.pid, signal.SIGINT)
    terminal.wait_for("Nothing was written")
    assert terminal.process.wait(20) == 1
    assert "Traceback" not in terminal.screen
    assert not (tmp_path / "c.yaml").exists()
