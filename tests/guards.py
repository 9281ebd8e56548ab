"""What a test may not leave behind. Each guard looks before and after, says what was left, and puts it right again."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from accelerate import runtime

Guard = Callable[[], Iterator[list[str]]]

# Set by pytest itself, and by libraries when they are imported for the first time.
PASSING_NAMES = {
    "PYTEST_CURRENT_TEST",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TF_CPP_MIN_LOG_LEVEL",
}
# Threads that a library starts once for the life of the process.
PASSING_THREADS = ("tqdm_monitor", "TMonitor", "asyncio_", "QueueFeederThread", "pytest_timeout", "raylet")
THREAD_GRACE = 2.0


def environment() -> Iterator[list[str]]:
    """Names of the environment that were added, changed or removed."""
    before = dict(os.environ)
    yield []
    after = dict(os.environ)
    changed = [
        name
        for name in before.keys() | after.keys() - PASSING_NAMES
        if before.get(name) != after.get(name) and name not in PASSING_NAMES
    ]
    for name in changed:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    yield [f"environment: {name} was {before.get(name)!r}, is {after.get(name)!r}" for name in sorted(changed)]


def threads() -> Iterator[list[str]]:
    """Threads that still run."""
    before = set(threading.enumerate())
    yield []
    left = _new_threads(before)
    if left:
        gc.collect()  # a loader's or pool's threads end when it is collected
        deadline = time.monotonic() + THREAD_GRACE
        while left and time.monotonic() < deadline:
            left[0].join(0.01)
            left = _new_threads(before)
    yield [f"thread: {thread.name!r} still runs" for thread in left]


def _new_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if thread not in before and thread.is_alive() and not thread.name.startswith(PASSING_THREADS)
    ]


def children() -> Iterator[list[str]]:
    """Processes of multiprocessing that still run."""
    before = {child.pid for child in multiprocessing.active_children()}
    yield []
    left = [child for child in multiprocessing.active_children() if child.pid not in before]
    for child in left:
        child.kill()
        child.join()
    yield [f"process: {child.name!r} still runs" for child in left]


def process_group() -> Iterator[list[str]]:
    """A process group that is still open."""
    yield []
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        yield []
        return
    found = f"process group: {distributed.get_backend()} of {distributed.get_world_size()} is still open"
    distributed.destroy_process_group()
    yield [found]


def job() -> Iterator[list[str]]:
    """The Runtime and the dictionaries of the state classes. The ``fresh_state`` fixture empties them in time."""
    yield []
    held = runtime.slots()
    left = [name for name in ("runtime", "partial", "accelerator") if getattr(held, name)]
    runtime.reset()
    yield [f"state: {name} is still set; let the test use the fixture `fresh_state`" for name in left]


def folder() -> Iterator[list[str]]:
    """Files in the working directory, which belongs to the session."""
    where = Path.cwd()
    before = set(os.listdir(where))
    yield []
    if Path.cwd() != where:
        found = [f"working directory: was {where}, is {Path.cwd()}"]
        os.chdir(where)
        yield found
        return
    left = sorted(set(os.listdir(where)) - before)
    for name in left:
        path = where / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    yield [f"file: {name} in the working directory; write into tmp_path" for name in left]


def interpreter() -> Iterator[list[str]]:
    """Hooks and signal handlers of the interpreter."""
    hook = sys.excepthook
    handlers = {sig: signal.getsignal(sig) for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    yield []
    found = []
    if sys.excepthook is not hook:
        found.append(f"interpreter: sys.excepthook is {sys.excepthook!r}")
        sys.excepthook = hook
    for sig, handler in handlers.items():
        if signal.getsignal(sig) is not handler and handler is not None:
            found.append(f"interpreter: the handler of {sig.name} is {signal.getsignal(sig)!r}")
            signal.signal(sig, handler)
    yield found


def torch_settings() -> Iterator[list[str]]:
    """Process-wide settings of torch."""
    before = _torch_settings()
    yield []
    after = _torch_settings()
    found = [f"torch: {name} was {before[name]}, is {after[name]}" for name in before if before[name] != after[name]]
    if found:
        import torch

        torch.set_default_dtype(before["default dtype"])
        torch.set_grad_enabled(before["grad mode"])
        torch.set_num_threads(before["threads"])
        torch.use_deterministic_algorithms(before["deterministic"])
    yield found


def _torch_settings() -> dict[str, object]:
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_default_dtype"):
        return {}
    return {
        "default dtype": torch.get_default_dtype(),
        "grad mode": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


GUARDS: tuple[Guard, ...] = (
    job,
    process_group,
    children,
    threads,
    environment,
    folder,
    interpreter,
    torch_settings,
)


def watch() -> Iterator[list[str]]:
    """Yields once before the test, and then everything that was left."""
    running = [guard() for guard in GUARDS]
    for guard in running:
        next(guard)
    yield []
    yield [found for guard in running for found in next(guard)]
