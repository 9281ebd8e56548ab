"""What the façade costs over a bare loop on the same DeepSpeed engine: two ranks, steps in turns, the median ratio.

OMP_NUM_THREADS=1 python -m benchmarks.deepspeed
"""

from __future__ import annotations

import statistics
import sys
import time
from importlib import import_module
from typing import Any

import torch
from torch import nn

from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.test_utils.world import run_world

LIMIT = 1.05
ROUNDS, STEPS = 40, 5


def _net() -> nn.Module:
    layers = [layer for _ in range(6) for layer in (nn.Linear(384, 384), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(384, 8))


def _engine() -> tuple[Any, Any, Any]:
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=2, gradient_clipping=1.0))
    net = _net()
    model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-4))
    return accelerator, model, optimizer


def _ours(accelerator: Any, model: Any, optimizer: Any, x: torch.Tensor) -> None:
    with accelerator.accumulate(model):
        accelerator.backward(model(x).square().mean())
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def _bare(accelerator: Any, model: Any, optimizer: Any, x: torch.Tensor) -> None:
    model.backward(model(x).square().mean())
    model.step()


def _rank(rank: int, world: int) -> tuple[float, float, float]:
    accelerator, model, optimizer = _engine()
    x = torch.randn(64, 384)
    for step in (_ours, _bare):
        for _ in range(STEPS):
            step(accelerator, model, optimizer, x)
    times: dict[Any, list[float]] = {_ours: [], _bare: []}
    for turn in range(ROUNDS):
        for step in (_ours, _bare) if turn % 2 else (_bare, _ours):
            accelerator.wait_for_everyone()
            begin = time.perf_counter()
            for _ in range(STEPS):
                step(accelerator, model, optimizer, x)
            times[step].append((time.perf_counter() - begin) / STEPS)
    ratios = [ours / bare for ours, bare in zip(times[_ours], times[_bare], strict=True)]
    return statistics.median(ratios), statistics.median(times[_ours]), statistics.median(times[_bare])


def main() -> int:
    """Prints the ratio; 1 where it is above the limit."""
    import_module("deepspeed")
    ratio, ours, bare = run_world(_rank, 2, how="fork", timeout=300)[0]
    print(f"step {ours * 1e3:.2f} ms, bare engine {bare * 1e3:.2f} ms, ratio {ratio:.3f} (limit {LIMIT})")
    return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
