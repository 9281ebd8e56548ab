"""One process, one device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelerate.checkpoint.plain import PlainStateAdapter
from accelerate.config.enums import DistributedType
from accelerate.strategies.base import Strategy

if TYPE_CHECKING:
    import torch

    from accelerate.checkpoint.adapter import StateAdapter

__all__ = ["SingleStrategy"]


class SingleStrategy(Strategy[None]):
    """Wraps nothing."""

    name = "single"

    def legacy_type(self, device_type: str) -> DistributedType:
        return DistributedType.NO

    def unwrap(self, model: torch.nn.Module) -> torch.nn.Module:
        return model

    def state(self) -> StateAdapter:
        return PlainStateAdapter(self.unwrap)
