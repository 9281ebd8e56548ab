"""One row of ``accelerate test --matrix``: a tiny transformer trained the way the launch says.

The whole batch is the same however many processes share it and in however many parts each one takes its share, so the
losses of every strategy are those of one process. Rank 0 writes losses, seconds and peak memory to a file.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelerate import Accelerator
from accelerate.devices import get
from accelerate.utils import set_seed

__all__ = ["Block", "TinyTransformer", "main", "tokens"]

WORDS, WIDTH, HEADS, LENGTH, WHOLE_BATCH, STEPS = 64, 32, 4, 16, 8, 5


class Block(nn.Module):
    """A causal transformer layer, normalised before each half. Takes and gives (batch, length, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.mixed(self.first(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        fed: torch.Tensor = self.feed(self.second(x))
        return x + fed


class TinyTransformer(nn.Module):
    """Logits (batch, length, words) of tokens (batch, length)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def tokens() -> torch.Tensor:
    """The training data, ``STEPS`` whole batches of it: (items, length + 1)."""
    return torch.randint(WORDS, (STEPS * WHOLE_BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(0))


def _train(accelerator: Accelerator, parts: int) -> list[float]:
    set_seed(0)
    model: nn.Module = TinyTransformer()
    # A large epsilon: where a gradient is zero but for rounding, Adam would make a whole step of the rounding.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)
    loader = DataLoader(TensorDataset(tokens()), batch_size=WHOLE_BATCH // (accelerator.num_processes * parts))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses, window = list[float](), list[torch.Tensor]()
    for (batch,) in loader:
        with accelerator.accumulate(model):
            logits = model(batch[:, :-1]).float()
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        window.append(loss.detach())
        if len(window) == parts:
            losses.append(accelerator.reduce(torch.stack(window).mean(), "mean").item())
            window.clear()
    return losses


def main() -> None:
    """Trains on every rank; rank 0 writes the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--report", required=True)
    parser.add_argument("--parts", type=int, default=1)
    args = parser.parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=args.parts)
    start = time.perf_counter()
    losses = _train(accelerator, args.parts)
    seconds = time.perf_counter() - start
    peak = get(accelerator.device.type).memory.peak(accelerator.device.index or 0)
    most = accelerator.gather(torch.tensor([float(peak)], device=accelerator.device)).max().item()
    if accelerator.is_main_process:
        found = {"losses": losses, "seconds": seconds, "peak": int(most), "kind": accelerator.distributed_type.value}
        Path(args.report).write_text(json.dumps({**found, "processes": accelerator.num_processes}), encoding="utf-8")
    accelerator.end_training()


if __name__ == "__main__":
    main()
