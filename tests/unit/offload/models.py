"""Small models whose sizes are easy to add up."""

from __future__ import annotations

import torch
from torch import nn


class Net(nn.Module):
    """64 + 72 (of which 40 buffers) + 100 = 236 bytes in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """800 bytes in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(10, 10, bias=False)
        self.down = nn.Linear(10, 10, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())  # type: ignore[no-any-return]


class Language(nn.Module):
    """Embedding tied to the head (4000 bytes), four blocks (3200), a parameter (40) and an unsaved buffer (40)."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.linspace(-1, 1, 10))
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 10), persistent=False)
        self.embed = nn.Embedding(100, 10)
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.head = nn.Linear(10, 100, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor, extra: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        x = self.embed(ids) * self.scale + self.shift
        if extra is not None:
            x = x + extra
        for block in self.blocks:
            x = block(x)
        return {"logits": self.head(x), "last": x}


def language(seed: int = 0) -> Language:
    torch.manual_seed(seed)
    return Language().eval()


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net().eval()
