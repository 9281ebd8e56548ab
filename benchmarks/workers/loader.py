"""Iterating a loader whose batches are nested: dictionaries in dictionaries, lists, and things that are no tensors."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, Dataset
from turns import report, take_turns

from accelerate import Accelerator

COUNT, BATCH = 3200, 32


class Nested(Dataset):
    """Items as a language model's data set has them."""

    def __init__(self) -> None:
        self.tokens = torch.randint(0, 1000, (COUNT, 64))

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict:
        row = self.tokens[index]
        return {
            "input_ids": row,
            "attention_mask": row,
            "labels": row,
            "extra": {"positions": row, "weights": [row, row]},
            "name": "item",
        }


def consume(batches: DataLoader) -> None:
    for _ in batches:
        pass


accelerator = Accelerator(cpu=True)
plain = DataLoader(Nested(), batch_size=BATCH)
prepared = accelerator.prepare(DataLoader(Nested(), batch_size=BATCH))
report(take_turns({"plain": lambda: consume(plain), "prepared": lambda: consume(prepared)}, 30))
