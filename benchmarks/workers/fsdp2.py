"""One step of a transformer that ``fully_shard`` divides over two processes: by hand, and prepared.

fsdp2.py             step times of both, in turns
fsdp2.py by_hand     peak memory of one of them, which needs a process of its own
fsdp2.py prepared
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from turns import report, take_turns

from accelerate import Accelerator, FullyShardedDataParallelPlugin

WIDTH, LAYERS, WORDS, LENGTH, BATCH = 256, 4, 1000, 64, 4


class Model(nn.Module):
    """Embedding, encoder layers, head."""

    _no_split_modules = ["TransformerEncoderLayer"]

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def batch() -> torch.Tensor:
    generator = torch.Generator().manual_seed(int(os.environ["RANK"]))
    return torch.randint(0, WORDS, (BATCH, LENGTH), generator=generator)


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def by_hand() -> Callable[[], None]:
    model, tokens = Model(), batch()
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        loss_of(model, tokens).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def prepared(accelerator: Accelerator) -> Callable[[], None]:
    model, tokens = Model(), batch()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))

    def step() -> None:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, tokens))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return step


plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="TRANSFORMER_BASED_WRAP")
accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
if len(sys.argv) > 1:
    run = by_hand() if sys.argv[1] == "by_hand" else prepared(accelerator)
    for _ in range(5):
        run()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if os.environ["RANK"] == "0":
        print(json.dumps({"peak": [peak]}), flush=True)
else:
    report(take_turns({"by_hand": by_hand(), "prepared": prepared(accelerator)}, 40))
torch.distributed.destroy_process_group()
