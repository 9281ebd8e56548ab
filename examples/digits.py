"""Handwritten digits, read by a small convolutional network: real data, one process or many, the same program.

    python examples/digits.py
    accelerate launch --num_processes 2 examples/digits.py

The data are the 1,797 digits of 8 by 8 pixels that scikit-learn ships, written by 43 people. The lines that a plain
PyTorch program does not have are marked with #!
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelerate import Accelerator
from accelerate.utils import set_seed

TEST_SHARE = 5


def data(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Images (float32, N x 1 x 8 x 8, 0 to 1) with their digits; ``seed`` picks the fifth of them to test with."""
    digits = load_digits()
    images = torch.from_numpy(digits.images.astype(np.float32) / 16).unsqueeze(1)
    labels = torch.from_numpy(digits.target.astype(np.int64))
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(labels)))
    test, train = order[: len(order) // TEST_SHARE], order[len(order) // TEST_SHARE :]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def network() -> nn.Module:
    """Three convolutions and a linear layer: 41,000 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(32 * 4 * 4, 10),
    )


def evaluate(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> tuple[int, int]:
    """How many digits were read right, and how many there were, each counted once whatever the number of processes."""
    right = seen = 0
    model.eval()
    for images, labels in loader:
        with torch.no_grad():
            guesses = model(images).argmax(dim=1)
        guesses, labels = accelerator.gather_for_metrics((guesses, labels))  #!
        right += int((guesses == labels).sum())
        seen += len(labels)
    model.train()
    return right, seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch_size", type=int, default=64, help="of all processes together")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", metavar="FILE", help="where to write the weights, for plain torch.load")
    args = parser.parse_args()

    accelerator = Accelerator()  #!
    set_seed(args.seed)
    train, test = data(args.seed)
    batch_size = max(1, args.batch_size // accelerator.num_processes)
    train_loader = DataLoader(train, batch_size=batch_size, shuffle=True)
    test_loader = DataLoader(test, batch_size=batch_size)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=args.lr, total_steps=args.epochs * len(train_loader)
    )
    model, optimizer, train_loader, test_loader, scheduler = accelerator.prepare(  #!
        model, optimizer, train_loader, test_loader, scheduler
    )

    started = time.perf_counter()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, disable=not accelerator.is_local_main_process) as progress:
        bar = progress.add_task("training", total=args.epochs * len(train_loader), loss=float("nan"))
        for epoch in range(args.epochs):
            for images, labels in train_loader:
                loss = nn.functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)  #!
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                progress.update(bar, advance=1, loss=loss.item(), description=f"epoch {epoch + 1}/{args.epochs}")
    seconds = time.perf_counter() - started

    right, seen = evaluate(accelerator, model, test_loader)
    accelerator.print(
        f"test accuracy {100 * right / seen:.2f} % ({right} of {seen} digits), "
        f"{accelerator.num_processes} process(es), {args.epochs * len(train) / seconds:,.0f} digits a second"
    )
    if args.save:
        accelerator.save(accelerator.unwrap_model(model).state_dict(), args.save)


if __name__ == "__main__":
    main()
