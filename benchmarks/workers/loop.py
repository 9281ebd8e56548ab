"""A training loop on a tiny network, where what a library adds to a step weighs most. One process or several."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from turns import report, take_turns

from accelerate import Accelerator

WORLD = int(os.environ.get("WORLD_SIZE", "1"))
STEPS, BATCH = 100, 32


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def loader() -> DataLoader:
    count = STEPS * BATCH * WORLD
    data = TensorDataset(torch.randn(count, 64), torch.randint(0, 10, (count,)))
    return DataLoader(data, batch_size=BATCH)


def plain(clip: bool) -> Callable[[], None]:
    model = network()
    if WORLD > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = loader()
    if WORLD > 1:
        batches = DataLoader(
            batches.dataset,
            batch_size=BATCH,
            sampler=torch.utils.data.DistributedSampler(batches.dataset, shuffle=False),
        )

    def run() -> None:
        for inputs, targets in batches:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return run


def prepared(accelerator: Accelerator, clip: bool) -> Callable[[], None]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader())

    def run() -> None:
        for inputs, targets in batches:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    def run_clip() -> None:
        for inputs, targets in batches:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()

    return run_clip if clip else run


accelerator = Accelerator(cpu=True)
parts = {"plain": plain(False), "prepared": prepared(accelerator, False)}
if WORLD == 1:
    parts |= {"plain_clip": plain(True), "prepared_clip": prepared(accelerator, True)}
report(take_turns(parts, 40))
if WORLD > 1:
    torch.distributed.destroy_process_group()
