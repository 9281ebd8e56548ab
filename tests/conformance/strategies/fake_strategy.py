"""A strategy of a user's own, as small as one can be: it averages gradients itself when a window closes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import torch

from accelerate.checkpoint.plain import PlainStateAdapter
from accelerate.config.enums import DistributedType
from accelerate.strategies.base import Strategy


class FakeStrategy(Strategy[None]):
    """Replicas; gradients are averaged by one all-reduce a parameter after backward."""

    name = "fake"

    def __init__(self, options: None) -> None:
        super().__init__(options)
        self.models: list[torch.nn.Module] = []
        self.held: set[int] = set()

    def legacy_type(self, device_type: str) -> DistributedType:
        return DistributedType.MULTI_CPU

    def wrap_model(self, model: torch.nn.Module, ctx: Any) -> torch.nn.Module:
        self.models.append(model)
        return model

    @contextmanager
    def no_sync(self, model: torch.nn.Module) -> Any:
        self.held.add(id(model))
        try:
            yield
        finally:
            self.held.discard(id(model))

    def backward(self, loss: torch.Tensor, precision: Any, **kwargs: Any) -> None:
        touched = [p for m in self.models if id(m) not in self.held for p in m.parameters()]
        before = {id(p): p.grad for p in touched}
        seen = {id(p): None if p.grad is None else p.grad.clone() for p in touched}
        super().backward(loss, precision, **kwargs)
        for p in touched:
            changed = p.grad is not None and (before[id(p)] is None or not torch.equal(p.grad, seen[id(p)]))
            if changed:
                p.grad = self.runtime.collectives.all_reduce(p.grad, "mean")

    def unwrap(self, model: torch.nn.Module) -> torch.nn.Module:
        return model

    def state(self) -> PlainStateAdapter:
        return PlainStateAdapter(self.unwrap)
