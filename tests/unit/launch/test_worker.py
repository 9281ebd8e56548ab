"""A program runs under the worker as it would under Python itself: everything it can see is compared."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from accelerate.launch.command import WORKER

SEES = """
import json, os, sys
main = sys.modules["__main__"]
print(json.dumps({
    "argv": sys.argv,
    "path0": sys.path[0],
    "name": __name__,
    "file": __file__,
    "package": __package__,
    "spec": getattr(__spec__, "name", None),
    "is_main": main.__dict__ is globals(),
    "names": sorted(name for name in globals() if name not in ("json", "os", "sys", "main", "__annotations__")),
    "doc": __doc__,
}))
"""


def run(*words: str, cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=cwd, env={**environ, **extra}, capture_output=True, text=True, timeout=50)


def seen(*words: str, cwd: Path, **extra: str) -> dict[str, object]:
    done = run(*words, cwd=cwd, **extra)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "train.py").write_text('"""Says what it sees."""' + SEES)
    (tmp_path / "mod.py").write_text(SEES)
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "__main__.py").write_text(SEES)
    (tmp_path / "pack" / "part.py").write_text(SEES)
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text(SEES)
    (tmp_path / "link.py").symlink_to(tmp_path / "sub" / "train.py")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["sub/train.py", "--a", "b c"],
        ["link.py"],
        ["app", "x"],
        ["-m", "mod", "--a"],
        ["-m", "pack"],
        ["-m", "pack.part", "-m"],
    ],
)
@pytest.mark.parametrize("safe", ["", "1"])
def test_a_program_sees_what_it_sees_under_python(folder: Path, words: list[str], safe: str) -> None:
    if safe and (words[0] == "-m" or words[0] == "app"):
        extra = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(folder)}
    else:
        extra = {"PYTHONSAFEPATH": safe} if safe else {}
    assert seen(WORKER, *words, cwd=folder, **extra) == seen(*words, cwd=folder, **extra)


def test_the_worker_imports_nothing_of_the_package(folder: Path) -> None:
    (folder / "modules.py").write_text(
        "import sys\nprint([m for m in sys.modules if m.startswith(('accelerate', 'typing'))])"
    )
    assert run(WORKER, "modules.py", cwd=folder).stdout == "[]\n"


def test_children_that_are_spawned_find_the_script(folder: Path) -> None:
    (folder / "spawn.py").write_text(
        "import multiprocessing\n"
        "def square(n): return n * n\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool: print(pool.map(square, [3]))\n"
    )
    done = run(WORKER, "spawn.py", cwd=folder)
    assert (done.stdout, done.stderr) == ("[9]\n", "")


def test_functions_of_the_script_pickle(folder: Path) -> None:
    (folder / "pickles.py").write_text(
        "import pickle\nclass Thing: pass\nassert type(pickle.loads(pickle.dumps(Thing()))) is Thing\nprint('same')\n"
    )
    assert run(WORKER, "pickles.py", cwd=folder).stdout == "same\n"


def test_exit_handlers_find_the_script_s_names(folder: Path) -> None:
    (folder / "later.py").write_text("import atexit\nword = 'still here'\natexit.register(lambda: print(word))\n")
    assert run(WORKER, "later.py", cwd=folder).stdout == "still here\n"


@pytest.mark.parametrize(("line", "code"), [("sys.exit(3)", 3), ("sys.exit()", 0), ("sys.exit('said')", 1), ("1", 0)])
def test_exit_codes_are_kept(folder: Path, line: str, code: int) -> None:
    (folder / "ends.py").write_text(f"import sys\n{line}\n")
    done = run(WORKER, "ends.py", cwd=folder)
    assert done.returncode == code == run("ends.py", cwd=folder).returncode
    assert done.stderr == run("ends.py", cwd=folder).stderr


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    raise ValueError('boom')\nf()\n",
        "x = = 1\n",
        "import mod_that_is_not_there\n",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e\n",
        "import sub_bad\n",
        "raise ExceptionGroup('g', [ValueError(1)])\n" if sys.version_info >= (3, 11) else "raise ValueError(1)\n",
    ],
)
def test_an_error_reads_as_under_python(folder: Path, text: str) -> None:
    (folder / "fails.py").write_text(text)
    (folder / "sub_bad.py").write_text("raise RuntimeError('while importing')\n")
    under_python = run("fails.py", cwd=folder)
    done = run(WORKER, "fails.py", cwd=folder, RANK="1", WORLD_SIZE="2")
    assert done.returncode == under_python.returncode == 1
    head, _, rest = done.stderr.strip().partition("\n")
    assert head == "accelerate launch: rank 1 of 2 raised an error."
    # Python 3.11 and later mark the failing part; both do so in the same way.
    assert rest.strip() == under_python.stderr.strip()


def test_an_error_is_recorded_where_the_launcher_looks(folder: Path) -> None:
    (folder / "fails.py").write_text("raise ValueError('boom')\n")
    done = run(WORKER, "fails.py", cwd=folder, TORCHELASTIC_ERROR_FILE=str(folder / "e.json"), RANK="1", WORLD_SIZE="2")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    written = json.loads((folder / "e.json").read_text())
    assert written["message"]["message"] == "ValueError: boom"
    assert written["exception"]["frames"] == [
        {"file": str(folder / "fails.py"), "line": 1, "function": "<module>", "code": "raise ValueError('boom')"}
    ]


def test_an_error_is_shown_where_another_package_hides_the_library(folder: Path) -> None:
    (folder / "accelerate").mkdir()
    (folder / "accelerate" / "__init__.py").write_text("")
    (folder / "fails.py").write_text("import accelerate\nraise ValueError('boom')\n")
    done = run(WORKER, "fails.py", cwd=folder)
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: boom\n") and "worker.py" not in done.stderr


def test_a_module_that_is_not_there(folder: Path) -> None:
    done = run(WORKER, "-m", "pack.nothing", cwd=folder)
    assert done.returncode == 1
    assert done.stderr.endswith("ModuleNotFoundError: No module named pack.nothing\n")
    (folder / "bare").mkdir()
    (folder / "bare" / "__init__.py").write_text("")
    assert "without a __main__" in run(WORKER, "-m", "bare", cwd=folder).stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_line_is_one_write(folder: Path, unbuffered: str) -> None:
    """Of a datagram socket every read gives what one write gave, so two ranks' lines could not meet inside one."""
    (folder / "lines.py").write_text(
        "import os, sys\nprint('one', 1)\nprint('t', end='')\nprint('wo')\nprint('three', 3, file=sys.stderr)\n"
        "sys.stdout.flush()\nos._exit(0)\n"
    )
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        ours.settimeout(20)
        environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        words = [sys.executable, WORKER, "lines.py"]
        subprocess.run(words, cwd=folder, env=environ, stdout=theirs, stderr=theirs, timeout=50, check=True)
        assert [ours.recv(100) for _ in range(3)] == [b"one 1\n", b"two\n", b"three 3\n"]
