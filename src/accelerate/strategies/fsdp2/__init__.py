"""Fully sharded data parallelism by ``fully_shard`` (version 2)."""

from __future__ import annotations

from accelerate.strategies.fsdp2.strategy import Fsdp2Strategy

__all__ = ["Fsdp2Strategy"]
