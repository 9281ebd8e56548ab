"""The façade: ``Accelerator``, put together from one mixin a concern."""

from __future__ import annotations

from accelerate.accelerator.facade import Accelerator, _split_batches

__all__ = ["Accelerator", "_split_batches"]
