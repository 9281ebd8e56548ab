"""What a save in the background costs the training loop, beside one that it waits for; and what a save adds to memory.

The first save in the background is not counted: it is the one that takes the memory that copies are made into.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from torch import nn

from accelerate import Accelerator

WIDTH, LAYERS = 2449, 10
ROUNDS = int(os.environ.get("CHECKPOINT_ROUNDS", "5"))

folder = Path(tempfile.mkdtemp(dir="."))
accelerator = Accelerator(cpu=True)
model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(2, WIDTH)).sum().backward()
optimizer.step()
optimizer.zero_grad()
accelerator.prepare(model, optimizer)
size = 3 * 4 * sum(p.numel() for p in model.parameters())


def resident() -> int:
    """Bytes of this process's own memory; pages of files are not counted."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))


def peak_of_a_save() -> float:
    """The most memory that a save adds, as a part of the checkpoint's size."""
    before, most, done = resident(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.001):
            most[0] = max(most[0], resident() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    accelerator.save_state(folder / "peak")
    done.set()
    thread.join()
    shutil.rmtree(folder / "peak")
    return most[0] / size


taken: dict[str, list[float]] = {"synchronous": [], "blocking": [], "all": [1.0], "peak": []}  # "all": the whole of it
if "peak" in sys.argv[1:]:
    taken["peak"] = [peak_of_a_save() for _ in range(3)]
else:
    for turn in range(ROUNDS + 1):
        started = time.perf_counter()
        accelerator.save_state(folder / "now")
        waited = time.perf_counter() - started
        shutil.rmtree(folder / "now")
        started = time.perf_counter()
        running = accelerator.save_state(folder / "later", asynchronous=True)
        blocked = time.perf_counter() - started
        running.wait()
        shutil.rmtree(folder / "later")
        if turn:
            taken["synchronous"].append(waited)
            taken["blocking"].append(blocked)
print(json.dumps({name: values for name, values in taken.items() if values}), flush=True)
shutil.rmtree(folder)
