"""A program that is not there: what the message names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from accelerate.errors import LaunchError
from accelerate.launch import ports
from accelerate.launch.base import Job, Launcher, LaunchPlan
from accelerate.launch.program import check_program
from accelerate.launch.registry import choose, register


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "evaluate.py").write_text("")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("raise RuntimeError('imported while it was looked for')")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("program", "kind", "says"),
    [
        ("trian.py", {}, "Did you mean 'train.py'?"),
        ("scripts/evalute.py", {}, "Did you mean 'scripts/evaluate.py'?"),
        ("script/evaluate.py", {}, "there is 'scripts'"),
        ("train", {}, "'train.py'"),
        ("pack2", {"module": True}, "Did you mean 'pack'?"),
        ("train.py", {"module": True}, "-m train, or leave out -m"),
        ("nothing_like_it.py", {}, "There is no script 'nothing_like_it.py' in "),
        ("--num_procs", {}, "no flag '--num_procs'"),
        ("no-such-command", {"python": False}, "no command 'no-such-command' on the PATH"),
        (Path(sys.executable).name, {}, "--no_python"),
        ("json", {}, "add -m"),
    ],
)
def test_what_is_there_is_named(folder: Path, program: str, kind: dict[str, bool], says: str) -> None:
    with pytest.raises(LaunchError, match=r"(?s)^There is no|^-m") as caught:
        check_program(program, module=kind.get("module", False), python=kind.get("python", True))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ("train.py", {}),
        ("scripts/evaluate.py", {}),
        ("scripts", {}),
        ("pack", {"module": True}),
        ("pack.anything", {"module": True}),
        ("json.tool", {"module": True}),
        ("ls", {"python": False}),
    ],
)
def test_what_is_there_may_run(folder: Path, program: str, kind: dict[str, bool]) -> None:
    check_program(program, module=kind.get("module", False), python=kind.get("python", True))


def test_a_port_in_use_is_an_error_that_names_it() -> None:
    import socket

    with socket.socket() as holder:
        holder.bind(("", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        assert ports.in_use(taken)
        with pytest.raises(LaunchError, match=f"Port {taken} was asked for"):
            ports.claim(taken)
    assert ports.claim(taken) == taken
    assert ports.claim(None) > 0 and ports.claim(0) > 0


def test_addresses_of_this_machine() -> None:
    assert ports.is_this_machine("127.0.0.1") and ports.is_this_machine("localhost")
    assert not ports.is_this_machine("192.0.2.1")  # kept free for documentation
    assert not ports.is_this_machine("no-such-host.invalid")


class Own(Launcher):
    name = "own"

    def accepts(self, job: Job) -> bool:
        return job.program == "mine.py"

    def plan(self, job: Job) -> LaunchPlan:
        return LaunchPlan(kind=self.name, argv=("own", job.program), job=job)

    def run(self, plan: LaunchPlan) -> int:
        return 0


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Own:
    from accelerate.launch import registry

    monkeypatch.setattr(registry, "_own", {})
    launcher = Own()
    register(launcher)
    return launcher


def test_a_launcher_of_one_s_own_is_asked_first_and_found_by_name(registered: Own) -> None:
    from accelerate.config.run import RunConfig

    assert choose(Job(config=RunConfig(), program="mine.py")) is registered
    assert choose(Job(config=RunConfig(engine="own"), program="other.py")) is registered
    assert choose(Job(config=RunConfig(), program="other.py")).name == "inline"


def test_a_launcher_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    from accelerate.config.run import RunConfig

    class Entry:
        name = "theirs"

        def load(self) -> type[Own]:
            return Own

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [Entry()] if "launchers" in group else [])
    assert isinstance(choose(Job(config=RunConfig(engine="theirs"), program="x.py")), Own)
