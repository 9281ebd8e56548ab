"""An MPI job from the command line. ``mpirun`` is stood in for by a script that starts ranks the way OpenMPI does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launching import Launch, Script

MPIRUN = f"""#!{sys.executable}
import os, subprocess, sys
words = sys.argv[1:]
if words == ["--version"]:
    print("mpirun (Open MPI) 4.1.4")
    sys.exit()
exported, count, hosts = [], None, None
while words[0].startswith("-"):
    flag = words.pop(0)
    if flag == "-x":
        exported.append(words.pop(0))
    elif flag == "-n":
        count = int(words.pop(0))
    elif flag == "--hostfile":
        hosts = open(words.pop(0)).read()
    elif flag == "--npernode":
        words.pop(0)
# Another host knows nothing but what is exported.
environ = {{name: os.environ[name] for name in ("PATH", "HOME", *exported) if name in os.environ}}
ranks = [
    subprocess.Popen(words, env={{**environ, "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(count),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": str(count)}})
    for rank in range(count)
]
codes = [rank.wait() for rank in ranks]
print("mpirun has words of its own about this", file=sys.stderr)
sys.exit(max(codes))
"""

SCRIPT = """
import sys
import torch, torch.distributed as dist
from accelerate import PartialState
state = PartialState()
total = torch.tensor([state.process_index + 1.0])
dist.all_reduce(total)
if len(sys.argv) > 1 and state.process_index == 1:
    raise ValueError("bad")
if state.is_main_process:
    print("RESULT", state.num_processes, total.item(), state.device)
dist.destroy_process_group()
"""


@pytest.fixture
def mpirun(tmp_path: Path) -> dict[str, str]:
    """An environment whose ``mpirun`` is the stand-in."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "mpirun"
    program.write_text(MPIRUN)
    program.chmod(0o755)
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.timeout(120)
def test_ranks_of_mpirun_are_one_group(
    launch: Launch, script: Script, mpirun: dict[str, str], left: Callable[[], list[str]]
) -> None:
    done = launch("--cpu", "--mpirun_hostfile", "hosts", "--num_processes", 2, script(SCRIPT), **mpirun)
    assert (done.code, done.out) == (0, "RESULT 2 3.0 cpu"), done.screen
    assert left() == []


@pytest.mark.timeout(120)
def test_the_error_of_a_rank_comes_last(launch: Launch, script: Script, mpirun: dict[str, str]) -> None:
    done = launch("--cpu", "--engine", "mpi", "--num_processes", 2, script(SCRIPT), "fail", **mpirun)
    assert done.code == 1
    assert done.screen.count("ValueError: bad") == 1 and done.screen.endswith("ValueError: bad\n")
    assert "rank 1 of 2 raised an error" in done.screen


def test_without_mpirun(launch: Launch, script: Script) -> None:
    done = launch(
        "--engine", "mpi", "--num_processes", 2, script("print('ran')"), PATH=str(Path(sys.executable).parent)
    )
    assert done.code == 1
    assert "there is no mpirun on the PATH" in done.screen and "ran" not in done.screen
