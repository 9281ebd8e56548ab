"""Small loaders for tests: datasets of numbers, prepared for one of several ranks without any group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from accelerate.config.data import DataLoaderConfiguration
from accelerate.data.prepare import Part, prepare_loader

CPU = torch.device("cpu")


class Numbers(Dataset):
    """0, 1, 2, …; counts what is read."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        self.read.append(index)
        return index


class Stream(IterableDataset):
    """0, 1, 2, … without indices; counts what is read."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.read: list[int] = []

    def __iter__(self) -> Iterator[int]:
        for number in range(self.length):
            self.read.append(number)
            yield number


def prepare(loader: DataLoader, count: int = 1, index: int = 0, **settings: Any) -> Any:
    """``loader`` as rank ``index`` of ``count`` gets it; ``settings`` go to DataLoaderConfiguration."""
    beside = {name: settings.pop(name) for name in ("siblings", "already_sharded", "device") if name in settings}
    beside.setdefault("device", CPU)
    return prepare_loader(
        loader, shard=Part(count=count, index=index), config=DataLoaderConfiguration(**settings), **beside
    )


def ids(batches: Iterable[Any]) -> list[list[int]]:
    """Batches of numbers as lists."""
    return [batch.tolist() for batch in batches]


def flat(batches: Iterable[Any]) -> list[int]:
    """The numbers of all batches."""
    return [number for batch in batches for number in (batch.tolist() if hasattr(batch, "tolist") else batch)]
