"""Compilation of repeated blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from accelerate.utils import compile_regions_deepspeed, compile_regions_fsdp2, has_compiled_regions


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))
        self.head = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


class Engine(nn.Module):
    """What an engine is to its model."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)  # type: ignore[no-any-return]


def compiled(module: nn.Module) -> list[str]:
    return [name for name, part in module.named_modules() if part._compiled_call_impl is not None]


@pytest.mark.parametrize("compile_in_place", [compile_regions_fsdp2, compile_regions_deepspeed])
@pytest.mark.parametrize("wrap", [nn.Sequential, Engine])
def test_blocks_are_compiled_where_they_are(
    compile_in_place: Callable[..., Any], wrap: Callable[[nn.Module], nn.Module]
) -> None:
    model = Stack()
    names, outer = list(model.state_dict()), wrap(model)
    x = torch.randn(2, 3)
    wanted = model(x)
    returned = compile_in_place(outer, backend="eager")
    assert returned is (outer if compile_in_place is compile_regions_fsdp2 else None)
    assert compiled(model) == ["blocks.0", "blocks.1"] and has_compiled_regions(outer)
    assert list(model.state_dict()) == names
    assert torch.equal(outer(x), wanted)


def test_a_model_without_repetition_is_compiled_whole_and_stays_itself() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    assert compile_regions_fsdp2(model, backend="eager") is model
    assert compiled(model) == [""]
