"""The learning-rate scheduler that ``prepare`` returns: it steps when its optimizers did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accelerate import runtime

__all__ = ["AcceleratedScheduler"]


class AcceleratedScheduler:
    """A scheduler in front of another one. The stepping rules:

    1. while gradients are being accumulated, ``step`` does not move the schedule;
    2. if an optimizer's step was skipped, ``step`` does not move the schedule;
    3. otherwise it moves by one step for every process, so that a schedule written for one process (in batches)
       ends after the same number of samples; by exactly one with ``split_batches``, where the global batch does not
       grow with the processes, with ``once=True``, for a schedule written in optimizer steps, or where ``step`` is
       given something (a metric, as ReduceLROnPlateau is): it is one observation, however many processes there are;
    4. with ``step_with_optimizer=False`` every call moves the schedule by one.

    Args:
        scheduler: Any object with ``step()``.
        optimizers: The prepared optimizer or optimizers it drives.
        step_with_optimizer: See rule 4.
        split_batches: See rule 3.
        once: See rule 3.
    """

    def __init__(
        self,
        scheduler: Any,
        optimizers: Any,
        step_with_optimizer: bool = True,
        split_batches: bool = False,
        once: bool = False,
    ) -> None:
        from accelerate.state import GradientState

        self.scheduler = scheduler
        self.optimizers: Sequence[Any] = optimizers if isinstance(optimizers, (list, tuple)) else [optimizers]
        self.split_batches = split_batches
        self.step_with_optimizer = step_with_optimizer
        self.once = once
        self.gradient_state = GradientState()

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Moves the schedule by the rules of the class."""
        if not self.step_with_optimizer:
            self.scheduler.step(*args, **kwargs)
            return
        if not self._gradients_complete():
            if self.gradient_state.adjust_scheduler and hasattr(self.scheduler, "_step_count"):
                # torch warns where a scheduler was called less often than its optimizer; the calls did happen.
                self.scheduler._step_count += 1
            return
        if any(getattr(optimizer, "step_was_skipped", False) for optimizer in self.optimizers):
            return
        for _ in range(1 if args or kwargs else self._moves()):
            if self._has_ended():
                return
            self.scheduler.step(*args, **kwargs)

    def _gradients_complete(self) -> bool:
        complete = [getattr(optimizer, "gradients_complete", None) for optimizer in self.optimizers]
        known = [value for value in complete if value is not None]
        return all(known) if known else bool(self.gradient_state.sync_gradients)

    def _moves(self) -> int:
        if self.split_batches or self.once:
            return 1
        held = runtime.find()
        if held is None:
            return 1
        return held.strategy.shard_spec().count if held.strategy is not None else held.topology.world_size

    def _has_ended(self) -> bool:
        # OneCycleLR and the like raise one step after their last one.
        total = getattr(self.scheduler, "total_steps", None)
        return total is not None and getattr(self.scheduler, "last_epoch", -1) + 1 >= total

    def get_last_lr(self) -> Any:
        return self.scheduler.get_last_lr()

    def get_lr(self) -> Any:
        return self.scheduler.get_lr()

    def print_lr(self, *args: Any, **kwargs: Any) -> Any:
        return self.scheduler.print_lr(*args, **kwargs)

    def state_dict(self) -> dict[str, Any]:
        return dict(self.scheduler.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.scheduler.load_state_dict(state_dict)

    def __getattr__(self, name: str) -> Any:
        if name == "scheduler":
            raise AttributeError(name)
        return getattr(self.scheduler, name)
