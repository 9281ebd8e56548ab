"""Gathering predictions and labels over two processes."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from turns import report, take_turns

from accelerate import Accelerator

CALLS = 50
WORLD = int(os.environ["WORLD_SIZE"])

accelerator = Accelerator(cpu=True)
predictions = torch.randn(32, 10)
labels = torch.randint(0, 10, (32,))


def raw() -> None:
    for _ in range(CALLS):
        for tensor in (predictions, labels):
            parts = [torch.empty_like(tensor) for _ in range(WORLD)]
            dist.all_gather(parts, tensor)
            torch.cat(parts)


def library() -> None:
    for _ in range(CALLS):
        accelerator.gather_for_metrics((predictions, labels))


report(take_turns({"plain": raw, "prepared": library}, 40))
dist.destroy_process_group()
