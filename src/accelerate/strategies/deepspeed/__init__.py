"""Training by DeepSpeed's engine (ZeRO 0 to 3)."""

from __future__ import annotations

from accelerate.strategies.deepspeed.strategy import DeepSpeedStrategy

__all__ = ["DeepSpeedStrategy"]
