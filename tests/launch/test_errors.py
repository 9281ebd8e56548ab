"""A script that fails: what is last on the screen, the exit code, and the file (behaviour E2)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launching import ACCELERATE, Done, Launch, Script

BAD = """import os
def step(rank):
    raise ValueError(f"bad value on {rank}")
if os.environ.get("RANK", "0") == "{who}":
    step(os.environ.get("RANK", "0"))
import time; time.sleep(60)
"""


def user_traceback(path: str, rank: int, call: int = 5) -> list[str]:
    """What Python itself would say, without the marks that some versions put under a line."""
    return [
        "Traceback (most recent call last):",
        f'  File "{path}", line {call}, in <module>',
        '    step(os.environ.get("RANK", "0"))',
        f'  File "{path}", line 3, in step',
        '    raise ValueError(f"bad value on {rank}")',
        f"ValueError: bad value on {rank}",
    ]


def last_lines(done: Done) -> list[str]:
    """The screen from the only traceback on."""
    assert done.screen.count("Traceback (most recent call last)") == 1, done.screen
    lines = done.screen[done.screen.index("Traceback") :].splitlines()
    return [line for line in lines if set(line) - set(" ^~")]


def json_file(done: Done) -> dict[str, object]:
    found = re.search(r"The error as JSON: (.*)", done.screen)
    assert found is not None, done.screen
    record: dict[str, object] = json.loads(Path(found[1]).read_text())
    return record


def test_one_process(launch: Launch, script: Script) -> None:
    path = script(BAD.replace("{who}", "0"))
    done = launch(path)
    assert done.code == 1
    assert done.screen.startswith("\naccelerate launch: rank 0 of 1 raised an error.\n")
    assert last_lines(done) == user_traceback(path, 0)
    record = json_file(done)
    assert record["rank"] == 0
    assert [frame["function"] for frame in record["exception"]["frames"]] == ["<module>", "step"]  # type: ignore[index]


@pytest.mark.timeout(120)
def test_one_of_two(launch: Launch, script: Script) -> None:
    path = script(BAD.replace("{who}", "1"))
    done = launch("--num_processes", 2, path)
    assert done.code == 1
    assert "accelerate launch: rank 1 of 2 raised an error.\n" in done.screen
    assert last_lines(done) == user_traceback(path, 1)
    record = json_file(done)
    assert (record["rank"], record["world_size"]) == (1, 2)
    assert record["message"]["message"] == "ValueError: bad value on 1"  # type: ignore[index]


def test_both_of_two_are_shown_once(launch: Launch, script: Script, tmp_path: Path) -> None:
    # Both fail before the agent looks, because each waits for the other's file.
    path = script(
        "import os, pathlib, time\n"
        "mine, other = os.environ['RANK'], str(1 - int(os.environ['RANK']))\n"
        "pathlib.Path(mine).touch()\n"
        "while not pathlib.Path(other).exists(): time.sleep(0.001)\n"
        "raise ValueError('both')\n"
    )
    done = launch("--num_processes", 2, "--monitor_interval", 3, "--log_dir", tmp_path / "logs", path)
    assert done.code == 1
    assert done.screen.count("ValueError: both") == 1
    assert done.screen.endswith("ValueError: both\n")
    assert "(1 more rank failed, shown is the first)" in done.screen
    record = json.loads((tmp_path / "logs" / "error.json").read_text())
    assert [other["exit_code"] for other in record["others"]] == [1]


def test_a_killed_rank_is_named_with_its_signal(launch: Launch, script: Script) -> None:
    done = launch(
        "--num_processes",
        2,
        script(BAD.replace('step(os.environ.get("RANK", "0"))', "os.kill(os.getpid(), 9)").replace("{who}", "1")),
    )
    assert done.code == 128 + signal.SIGKILL
    assert "rank 1 of 2 was ended by SIGKILL; if nobody sent it, the machine probably ran out of memory" in done.screen
    assert "Traceback" not in done.screen
    assert json_file(done)["signal"] == "SIGKILL"


def test_exit_codes_are_passed_on(launch: Launch, script: Script, left: Callable[[], list[str]]) -> None:
    path = script("import os, sys, time\nif os.environ.get('RANK', '1') == '1': sys.exit(3)\ntime.sleep(60)\n")
    assert launch(path).code == 3
    done = launch("--num_processes", 2, path)
    assert done.code == 3
    assert f"rank 1 of 2 exited with code 3 from {path}" in done.screen
    assert left() == []
    assert launch(script("import sys; sys.exit('said')")).screen == "said\n"


def test_a_script_that_is_not_there(launch: Launch, script: Script) -> None:
    script("")
    for words in (["trian.py"], ["--num_processes", "2", "trian.py"]):
        done = launch(*words)
        assert (done.code, "Did you mean 'train.py'?" in done.screen, done.screen.count("\n")) == (1, True, 1)


def test_a_configuration_that_is_wrong(launch: Launch, script: Script, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("num_proceses: 2\n")
    done = launch("--config_file", tmp_path / "c.yaml", script("print('ran')"))
    assert done.code == 1
    assert "num_processes" in done.screen and "Traceback" not in done.screen and "ran" not in done.screen


def test_a_syntax_error_and_a_missing_import(launch: Launch, script: Script) -> None:
    done = launch(script("x = = 1\n"))
    assert done.code == 1
    assert done.screen.endswith("SyntaxError: invalid syntax\n") and "Traceback" not in done.screen
    done = launch(script("import not_there\n"))
    assert done.screen.endswith("ModuleNotFoundError: No module named 'not_there'\n")


def test_the_program_s_own_way_of_showing_errors_is_used(launch: Launch, script: Script) -> None:
    done = launch(script("import sys\nsys.excepthook = lambda *a: print('mine:', a[1])\nraise ValueError('x')\n"))
    assert done.screen.endswith("mine: x\n") and "Traceback" not in done.screen


def test_quiet_leaves_the_launcher_s_lines_out(launch: Launch, script: Script) -> None:
    path = script(BAD.replace("{who}", "0"))
    assert "accelerate launch" not in launch("-q", "--multi_gpu", path).screen


# ---- signals


def interrupted(
    launch_words: list[str], path: str, sig: signal.Signals, times: int, cwd: Path, *command: str
) -> tuple[int, str, float]:
    job = subprocess.Popen(
        [*(command or (ACCELERATE, "launch")), *launch_words, path],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        assert job.stdout is not None
        while "up\n" not in job.stdout.readline():
            assert job.poll() is None
        time.sleep(0.5)
        started = time.monotonic()
        for _ in range(times):
            job.send_signal(sig)
            time.sleep(0.5)
        rest = job.stdout.read()
        return job.wait(20), rest, time.monotonic() - started
    finally:
        job.kill()
        job.wait()
        assert job.stdout is not None
        job.stdout.close()


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_ranks(sig: signal.Signals, script: Script, tmp_path: Path) -> None:
    path = script(
        "import os, pathlib, time\n"
        "pathlib.Path(f'{os.getpid()}.pid').touch()\n"
        "print('up', flush=True)\n"
        "time.sleep(99)\n"
    )
    code, rest, _ = interrupted(["--num_processes", "2"], path, sig, 1, tmp_path)
    assert code == 128 + sig
    assert f"accelerate launch: {sig.name} ended 2 ranks of this machine." in rest
    assert "Traceback" not in rest
    pids = [file.stem for file in tmp_path.glob("*.pid")]
    assert pids and not any(Path("/proc", pid).exists() for pid in pids)


def test_a_second_ctrl_c_does_not_wait(script: Script, tmp_path: Path) -> None:
    path = script(
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(99)\n"
    )
    code, _, seconds = interrupted(["--num_processes", "2"], path, signal.SIGINT, 2, tmp_path)
    assert code == 130
    assert seconds < 10


def test_ctrl_c_in_one_process_shows_where_it_was(script: Script, tmp_path: Path) -> None:
    path = script("import time\nprint('up', flush=True)\ntime.sleep(99)\n")
    code, rest, _ = interrupted([], path, signal.SIGINT, 1, tmp_path)
    assert code == 130
    assert rest.endswith("KeyboardInterrupt\n") and "line 3" in rest and "worker.py" not in rest


def test_a_launched_child_ends_with_the_program_that_launched_it(script: Script, tmp_path: Path) -> None:
    path = script(
        "import os, pathlib, time\n"
        "pathlib.Path(f'{os.getpid()}.pid').touch()\n"
        "print('up', flush=True)\n"
        "time.sleep(99)\n"
    )
    caller = tmp_path / "caller.py"
    caller.write_text(
        "import sys\n"
        "from accelerate.commands.launch import launch_command, launch_command_parser\n"
        "launch_command(launch_command_parser().parse_args(sys.argv[1:]))\n"
    )
    code, rest, _ = interrupted([], path, signal.SIGTERM, 1, tmp_path, sys.executable, str(caller))
    assert code == 128 + signal.SIGTERM
    assert "rank 0 of 1 was ended by SIGTERM" in rest
    assert not any(Path("/proc", file.stem).exists() for file in tmp_path.glob("*.pid"))


# ---- in place, and called from a program


def test_one_process_runs_in_this_interpreter_without_torch(launch: Launch, script: Script) -> None:
    path = script(
        "import os, sys\n"
        "precision = os.environ['ACCELERATE_MIXED_PRECISION']\n"
        "print('RESULT', os.getppid(), 'torch' in sys.modules, sys.argv[1:], precision)\n"
    )
    done = launch("--mixed_precision", "bf16", path, "--x")
    # The script's parent is whoever called `accelerate`.
    assert done.out == f"RESULT {os.getpid()} False ['--x'] bf16"


def test_the_old_module_path_launches(launch: Launch, script: Script) -> None:
    done = launch(script("print('RESULT ran')"), command=(sys.executable, "-m", "accelerate.commands.launch"))
    assert (done.code, done.out) == (0, "RESULT ran")


def test_a_program_can_launch(launch: Launch, script: Script, tmp_path: Path) -> None:
    path = script(
        "import os, sys\nprint('RESULT', os.environ.get('ACCELERATE_MIXED_PRECISION'))\nsys.exit(int(sys.argv[1]))\n"
    )
    caller = tmp_path / "caller.py"
    caller.write_text(
        "import os, sys\n"
        "from accelerate.commands.launch import launch_command, launch_command_parser\n"
        "parse = launch_command_parser().parse_args\n"
        f"launch_command(parse(['--mixed_precision', 'fp16', {path!r}, '0']))\n"
        "print('RESULT back', 'ACCELERATE_MIXED_PRECISION' in os.environ, sys.argv[0] == __file__, flush=True)\n"
        f"launch_command(parse([{path!r}, '4']))\n"
    )
    done = launch(caller, command=(sys.executable,))
    assert done.out.splitlines() == ["RESULT fp16", "RESULT back False True", "RESULT None"]
    assert done.code == 4


def test_an_error_of_a_launched_child_is_shown_once(launch: Launch, script: Script, tmp_path: Path) -> None:
    path = script(BAD.replace("{who}", "0"))
    caller = tmp_path / "caller.py"
    caller.write_text(
        "from accelerate.commands.launch import launch_command, launch_command_parser\n"
        f"launch_command(launch_command_parser().parse_args([{path!r}]))\n"
    )
    done = launch(caller, command=(sys.executable,))
    assert done.code == 1
    assert last_lines(done) == user_traceback(path, 0)


def test_logs_of_every_rank(launch: Launch, script: Script, tmp_path: Path) -> None:
    done = launch(
        "--num_processes", 2, "--tee", 3, "--log_dir", tmp_path / "logs", "--role", "job",
        script("import os, sys\nprint('out', os.environ['RANK'])\nprint('err', os.environ['RANK'], file=sys.stderr)\n"),
    )  # fmt: skip
    assert done.code == 0
    assert sorted(done.screen.split("\n"))[1:] == ["[job0]:err 0", "[job0]:out 0", "[job1]:err 1", "[job1]:out 1"]
    written = {path.name: path.read_text() for path in (tmp_path / "logs").glob("*/attempt_0/1/*.log")}
    assert written == {"stdout.log": "out 1\n", "stderr.log": "err 1\n"}


def test_dry_run_shows_the_plan_and_starts_nothing(launch: Launch, script: Script) -> None:
    done = launch("--dry_run", "--num_processes", 2, "--multi_gpu", script("print('ran')"))
    assert done.code == 0
    assert done.screen.startswith("2 processes on cpu, started by torchrun: ") and "\nran" not in done.screen
    assert "notice: --multi_gpu" in done.screen
