"""Fully sharded data parallelism by ``FullyShardedDataParallel`` (version 1)."""

from __future__ import annotations

from accelerate.strategies.fsdp1.strategy import Fsdp1Strategy

__all__ = ["Fsdp1Strategy"]
