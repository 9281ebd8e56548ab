"""How a loader tells the rest of the library that it is being iterated, and whether this is its last batch."""

from __future__ import annotations

from typing import Any

from accelerate.data.adapter import shown
from accelerate.state import GradientState

__all__ = ["DataLoaderStateMixin"]


class DataLoaderStateMixin:
    """Between ``begin`` and ``end`` a loader is the active one of the GradientState.

    end_of_dataloader: the batch in the user's hands is the last.
    remainder: how many different samples the last step of all ranks has; 0 where it is full, -1 where not known.
    real_counts: for each rank, how many samples of the step in hand are its own, where that has to be told by rank.
    """

    end_of_dataloader = False
    remainder = -1
    real_counts: list[int] | None = None

    @shown
    def gradient_state(self) -> GradientState:
        """The state that the loader reports to."""
        return GradientState()

    def begin(self: Any) -> None:
        """Called when an iteration begins."""
        DataLoaderStateMixin.reset(self)
        GradientState()._add_dataloader(self)

    def end(self: Any) -> None:
        """Called when an iteration ends, or is left."""
        GradientState()._remove_dataloader(self)

    def reset(self: Any) -> None:
        """Forgets what was known about the last batch."""
        self.end_of_dataloader = False
        self.remainder = -1
        self.real_counts = None
