"""How a failure is written down by the rank that fails, and shown once by whoever started it.

The file is the one torch's elastic agent reads (``message.message``, ``message.extraInfo``), with more beside it:
rank, host, exact time, the exception's type and the user's frames.
"""

from __future__ import annotations

import os.path
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from accelerate import env
from accelerate.launch.worker import user_traceback

__all__ = [
    "ERROR_FILE",
    "ERROR_FOLDER",
    "Failure",
    "account",
    "choose_root",
    "describe",
    "fail",
    "load",
    "quieten",
    "save_alone",
    "say",
    "show",
    "summarise",
    "write",
]

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
ERROR_FOLDER = "ACCELERATE_ERROR_DIR"

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK")
_WORLDS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCALS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")

# A rank that dies by a signal leaves no record, and its peers then fail because it is gone. The agent sees the death
# this many seconds after it happened at the most, unless it killed that rank itself.
SIGNAL_SEEN_WITHIN = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How one rank ended. ``code`` is negative where a signal did; ``record`` is None where it wrote none."""

    rank: int
    code: int
    pid: int = 0
    time: float = 0.0
    file: str | None = None
    record: Mapping[str, Any] | None = None

    @property
    def signal_name(self) -> str | None:
        """The signal that ended the rank, such as SIGKILL."""
        if self.code >= 0:
            return None
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"

    @property
    def exit_code(self) -> int:
        """What a shell would report: the rank's own code, or 128 and the signal."""
        return self.code if self.code > 0 else 128 - self.code


def describe(error: BaseException) -> dict[str, Any]:
    """The record of ``error`` as this rank saw it, without the launcher's own frames."""
    # What only a failure needs is imported by a failure: this module is part of every launch.
    import socket
    import time
    import traceback

    trace = user_traceback(error)
    whole = traceback.TracebackException(type(error), error, trace, compact=True)
    now = time.time()
    return {
        "message": {
            "message": "".join(whole.format_exception_only()).strip(),
            "extraInfo": {"py_callstack": "".join(whole.format()), "timestamp": str(int(now))},
        },
        "rank": env.get_int_from_env(_RANKS, 0),
        "world_size": env.get_int_from_env(_WORLDS, 1),
        "local_rank": env.get_int_from_env(_LOCALS, 0),
        "host": socket.gethostname(),
        "time": now,
        "exception": {
            "type": f"{type(error).__module__}.{type(error).__qualname__}",
            "text": str(error),
            "frames": [
                {"file": frame.filename, "line": frame.lineno, "function": frame.name, "code": frame.line}
                for frame in traceback.extract_tb(trace)
            ],
        },
    }


def write(record: Mapping[str, Any], path: str) -> bool:
    """Writes ``record`` to ``path`` so that a reader sees all of it or nothing; False where it cannot be written."""
    import json

    try:
        partial = f"{path}.partial"
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=2)
        os.replace(partial, path)
    except OSError:
        return False
    return True


def load(path: str) -> dict[str, Any] | None:
    """The record in ``path``, or None where there is none or it is not one of ours."""
    import json

    try:
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("message"), dict) else None


def fail(error: BaseException) -> None:
    """Records ``error`` where the launcher looks for it; without a launcher that will show it, shows it here."""
    record = describe(error)
    for place in (env.get(ERROR_FILE), _in_folder(record["rank"])):
        if place and write(record, place):
            return
    show(Failure(rank=record["rank"], code=1, record=record), record["world_size"])


def _in_folder(rank: int) -> str | None:
    folder = env.get(ERROR_FOLDER)
    return os.path.join(folder, f"rank_{rank}.json") if folder and os.path.isdir(folder) else None


def save_alone(record: Mapping[str, Any], folder: str | None) -> str | None:
    """Writes the record of a run of one process into ``folder`` (a fresh temporary one by default); its path."""
    import tempfile

    try:
        place = folder or tempfile.mkdtemp(prefix="accelerate-error-")
        os.makedirs(place, exist_ok=True)
    except OSError:
        return None
    path = os.path.join(place, "error.json")
    return path if write(record, path) else None


def choose_root(failures: list[Failure]) -> Failure:
    """The failure that came first and so explains the others.

    A rank that the agent ended (SIGTERM) explains nothing. A rank that another signal ended explains its peers'
    connection errors, unless it was seen so late that the agent must have killed it for not stopping.
    """
    own = [failure for failure in failures if failure.code != -signal.SIGTERM] or failures
    told = sorted(
        (failure for failure in own if failure.record is not None), key=lambda failure: (failure.time, failure.rank)
    )
    killed = sorted((failure for failure in own if failure.code < 0), key=lambda failure: (failure.time, failure.rank))
    if killed and (not told or killed[0].time - told[0].time < SIGNAL_SEEN_WITHIN):
        return killed[0]
    if told:
        return told[0]
    return min(own, key=lambda failure: (failure.time, failure.rank))


def summarise(
    failures: list[Failure], world_size: int, folder: str, *, always: bool = False
) -> tuple[Failure, list[Failure]]:
    """The failure that explains the others, with the file that describes it, and the others.

    The file is ``error.json`` in ``folder``. It is left out, unless ``always``, where the program ended itself by an
    exit code, which is no more than it wanted. Ranks that were merely ended along with the first do not count.
    """
    root = choose_root(failures)
    others = [failure for failure in failures if failure is not root and failure.code != -signal.SIGTERM]
    if root.record is None and root.code > 0 and not always:
        return root, others
    record = dict(root.record) if root.record is not None else _bare(root, world_size)
    record["others"] = [{"rank": other.rank, "exit_code": other.code, "signal": other.signal_name} for other in others]
    path = os.path.join(folder, "error.json")
    outer = env.get(ERROR_FILE)  # of an agent around this launcher
    if outer:
        write(record, outer)
    return replace(root, file=path if write(record, path) else root.file), others


def _bare(failure: Failure, world_size: int) -> dict[str, Any]:
    """The record of a rank that left none."""
    import socket

    return {
        "message": {
            "message": account(failure, world_size, ""),
            "extraInfo": {"py_callstack": "", "timestamp": str(int(failure.time))},
        },
        "rank": failure.rank,
        "world_size": world_size,
        "host": socket.gethostname(),
        "time": failure.time,
        "exit_code": failure.code,
        "signal": failure.signal_name,
    }


def show(
    root: Failure, world_size: int, *, others: int = 0, program: str = "", quiet: bool = False, text: str | None = None
) -> None:
    """Prints one failure to stderr: a line with its rank, then the user's traceback as the last thing on the screen.

    ``quiet`` leaves the launcher's lines out; ``text`` stands in for the traceback, empty where somebody else shows it.
    """
    _flush()
    counted = f" ({others} more rank{'s' * (others > 1)} failed, shown is the first)" if others > 0 else ""
    lines = ["", f"accelerate launch: {account(root, world_size, program)}{counted}."]
    if root.file:
        lines.append(f"The error as JSON: {root.file}")
    if text is None:
        text = root.record["message"]["extraInfo"]["py_callstack"].rstrip() if root.record else ""
    if quiet:
        lines = [text] if text else []
    elif text:
        lines += ["", text]
    if lines:
        say("\n".join(lines))


def say(text: str) -> None:
    """Prints a line of the launcher's own to stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def quieten() -> None:
    """Keeps torch's log of ending ranks off the screen, unless somebody asked for it: failures are shown here, once."""
    import logging

    if env.get("LOGLEVEL"):
        return
    for name in ("elastic", "run", "launcher"):
        logger = logging.getLogger(f"torch.distributed.{name}")
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)


def account(root: Failure, world_size: int, program: str = "") -> str:
    """How a rank failed, in half a sentence."""
    who = f"rank {root.rank} of {world_size}"
    if root.record is not None and root.code >= 0:
        return f"{who} raised an error"
    if root.code >= 0:
        return f"{who} exited with code {root.code}" + (f" from {program}" if program else "")
    why = {
        "SIGKILL": "; if nobody sent it, the machine probably ran out of memory: try a smaller batch, fewer processes "
        "or fewer loader workers, and see the kernel's log",
        "SIGSEGV": "; native code crashed: PYTHONFAULTHANDLER=1 shows the Python line it was called from",
        "SIGBUS": "; shared memory may be full: give /dev/shm more room or use fewer loader workers",
        "SIGABRT": "; native code gave up: its own message is further up",
    }.get(root.signal_name or "", "")
    return f"{who} was ended by {root.signal_name}{why}"


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
