"""Stand-ins for an optimizer and a scheduler that DeepSpeed makes from its own configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["DummyOptim", "DummyScheduler"]


class DummyOptim:
    """Takes the place of an optimizer that the ``optimizer`` section of DeepSpeed's configuration describes.

    Args:
        params: Parameters or parameter groups to train.
        lr: Fills ``optimizer.params.lr`` where it is "auto".
        weight_decay: Fills ``optimizer.params.weight_decay`` likewise.
        **kwargs: Fill keys of ``optimizer.params`` of the same name (``betas``, ``eps``, ``momentum`` …).
    """

    _accelerate_kind = "optimizer"

    def __init__(self, params: Any, lr: float = 0.001, weight_decay: float = 0, **kwargs: Any) -> None:
        self.params = params if isinstance(params, (list, tuple)) else list(params)
        self.lr = lr
        self.weight_decay = weight_decay
        self.kwargs = kwargs


class DummyScheduler:
    """Takes the place of a scheduler that the ``scheduler`` section of DeepSpeed's configuration describes.

    Args:
        optimizer: The placeholder or optimizer that it drives.
        total_num_steps: Length of the schedule, counted as for a prepared scheduler: in batches of one process.
        warmup_num_steps: Of these, how many warm up.
        lr_scheduler_callable: Makes the scheduler from the engine's optimizer; then no section is needed.
        **kwargs: Fill keys of ``scheduler.params`` of the same name.
    """

    _accelerate_kind = "scheduler"

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int | None = None,
        warmup_num_steps: int = 0,
        lr_scheduler_callable: Callable[[Any], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.optimizer = optimizer
        self.total_num_steps = total_num_steps
        self.warmup_num_steps = warmup_num_steps
        self.lr_scheduler_callable = lr_scheduler_callable
        self.kwargs = kwargs
