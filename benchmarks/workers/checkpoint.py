"""Saving and loading 60 million parameters with AdamW, beside torch.save and torch.load of the same tensors.

``python checkpoint.py`` leaves it to the system when bytes reach the disk; ``python checkpoint.py durable`` syncs both
sides. ``python checkpoint.py load`` loads as programs do, once in the life of a process: each time is taken in a fork
of its own, into a new model and a new optimizer. ``python checkpoint.py again`` loads over and over in one process.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

KIND = (sys.argv[1:] or ["save"])[0]
os.environ["ACCELERATE_CHECKPOINT_FSYNC"] = "1" if KIND == "durable" else "0"

import torch  # noqa: E402
import torch._dynamo  # noqa: E402  # what takes long to import is there before the forks
from torch import nn  # noqa: E402
from turns import report, take_turns  # noqa: E402

from accelerate import Accelerator  # noqa: E402

WIDTH, LAYERS = 2449, 10
ROUNDS = int(os.environ.get("CHECKPOINT_ROUNDS", "5"))
folder = Path(tempfile.mkdtemp(dir=".")).absolute()


class Subject:
    """A model and its optimizer, prepared; ``stepped`` gives the optimizer a state."""

    def __init__(self, stepped: bool) -> None:
        self.accelerator = Accelerator(cpu=True)
        self.model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        if stepped:
            self.model(torch.randn(2, WIDTH)).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.accelerator.prepare(self.model, self.optimizer)

    def torch_save(self) -> None:
        clear(folder / "torch.pt")
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, folder / "torch.pt")
        if KIND == "durable":
            fd = os.open(folder / "torch.pt", os.O_RDWR)
            os.fsync(fd)
            os.close(fd)

    def save(self) -> None:
        clear(folder / "own")
        self.accelerator.save_state(str(folder / "own"))

    def torch_load(self) -> None:
        found = torch.load(folder / "torch.pt", weights_only=True)
        self.model.load_state_dict(found["model"])
        self.optimizer.load_state_dict(found["optimizer"])

    def load(self) -> None:
        self.accelerator.load_state(str(folder / "own"))

    def load_unverified(self) -> None:
        # Where verification cannot be left out, there is none.
        without = {"verify": False} if "verify" in (self.accelerator.load_state.__kwdefaults__ or {}) else {}
        self.accelerator.load_state(str(folder / "own"), **without)


LOADS = {"torch_load": Subject.torch_load, "load": Subject.load, "load_unverified": Subject.load_unverified}


def clear(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def in_a_fork(work: Callable[[], list[float]]) -> list[float]:
    """What ``work`` returns in a process of its own."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, json.dumps(work()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        text = told.read()
    os.waitpid(child, 0)
    values: list[float] = json.loads(text)
    return values


def loads_once() -> dict[str, list[float]]:
    """Seconds of each kind of load, each time in a new process."""
    taken: dict[str, list[float]] = {name: [] for name in LOADS}

    def once(name: str) -> list[float]:
        subject = Subject(stepped=False)
        started = time.perf_counter()
        LOADS[name](subject)
        return [time.perf_counter() - started]

    for turn in range(ROUNDS):
        # Who comes first finds memory that the system has to bring in; each of them has its turn at that.
        for name in sorted(LOADS, key=list(LOADS).index, reverse=bool(turn % 2)):
            taken[name] += in_a_fork(lambda name=name: once(name))
    return taken


def written() -> list[float]:
    subject = Subject(stepped=True)
    subject.torch_save()
    subject.save()
    return []


if KIND == "load":
    in_a_fork(written)
    report(loads_once())
else:
    subject = Subject(stepped=True)
    subject.torch_save()
    subject.save()
    if KIND == "again":
        report(take_turns({name: lambda load=load: load(subject) for name, load in LOADS.items()}, ROUNDS))
    else:
        report(take_turns({"torch_save": subject.torch_save, "save": subject.save}, ROUNDS))
shutil.rmtree(folder)
