"""Saving and loading 60 million parameters with AdamW, beside torch.save and torch.load of the same tensors.

``python checkpoint.py`` leaves it to the system when bytes reach the disk; ``python checkpoint.py durable`` syncs both
sides.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

DURABLE = "durable" in sys.argv[1:]
os.environ["ACCELERATE_CHECKPOINT_FSYNC"] = "1" if DURABLE else "0"

import torch  # noqa: E402
from torch import nn  # noqa: E402
from turns import report, take_turns  # noqa: E402

from accelerate import Accelerator  # noqa: E402

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


def clear(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def torch_save() -> None:
    clear(folder / "torch.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "torch.pt")
    if DURABLE:
        fd = os.open(folder / "torch.pt", os.O_RDWR)
        os.fsync(fd)
        os.close(fd)


def torch_load() -> None:
    found = torch.load(folder / "torch.pt", weights_only=True)
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])


def save() -> None:
    clear(folder / "own")
    accelerator.save_state(folder / "own")


torch_save()
save()
parts = {"torch_save": torch_save, "save": save}
if not DURABLE:
    parts["torch_load"] = torch_load
    parts["load"] = lambda: accelerator.load_state(folder / "own")
    # Where verification cannot be left out, there is none.
    without = {"verify": False} if "verify" in (accelerator.load_state.__kwdefaults__ or {}) else {}
    parts["load_unverified"] = lambda: accelerator.load_state(folder / "own", **without)
report(take_turns(parts, ROUNDS))
shutil.rmtree(folder)
