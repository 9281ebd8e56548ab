"""Where a loader is: which epoch, and how much of it every rank together has handed to its user.

Batches are counted when the user gets them, so what workers have fetched ahead plays no part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Geometry", "Position", "Progress", "Start"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """How a step of this rank relates to the whole epoch.

    per_step: base batches (those of the loader before it was shared out) that one step of all ranks uses up.
    batch_size: samples in a base batch, or None where that varies.
    """

    per_step: int = 1
    batch_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How much of an epoch is left out: in base batches, and in samples where the size of a batch is known."""

    batches: int = 0
    samples: int | None = 0

    def after(self, steps: int, geometry: Geometry) -> Start:
        """The place ``steps`` steps later."""
        batches = steps * geometry.per_step
        if geometry.batch_size is None or self.samples is None:
            return Start(batches=self.batches + batches, samples=None)
        return Start(batches=self.batches + batches, samples=self.samples + batches * geometry.batch_size)

    @property
    def at_beginning(self) -> bool:
        """Whether nothing is left out."""
        return self.batches == 0 and not self.samples


@dataclass(slots=True)
class Progress:
    """One iteration: how many batches this rank has handed out since it began, and how it began."""

    handed: int = 0
    resumed: bool = False
    running: bool = True


@dataclass(slots=True, kw_only=True)
class Position:
    """The epoch, and the iteration that is on.

    An epoch ends when its iteration is exhausted. An iteration that was left early ends it too, as soon as the next one
    begins; until then the position stays where it was left, so that it can be saved after a ``break``.

    key, workers: what the order and the workers' seeds of this epoch were drawn from, where they were drawn.
    sampler_state, data_state: the state of a sampler, dataset or loader that keeps one itself, at this place.
    """

    epoch: int = 0
    start: Start = field(default_factory=Start)
    pending: bool = False
    asked_epoch: int | None = None
    progress: Progress | None = None
    key: int | str | None = None
    workers: int | None = None
    sampler_state: Any = None
    data_state: Any = None

    def begin(self, start: Start | None = None) -> Progress:
        """A new iteration. ``start`` leaves out the first part of the epoch, counted from its beginning."""
        earlier = self.progress
        resuming = self.pending or (earlier is not None and earlier.resumed and earlier.handed == 0)
        self.pending = False
        if not resuming or self.asked_epoch is not None:
            resuming = False
            if self.asked_epoch is not None:
                self.epoch = self.asked_epoch
            elif earlier is not None and earlier.handed:
                self.epoch += 1
            self._forget()
        if start is not None:
            self.start = start
        self.asked_epoch = None
        self.progress = Progress(resumed=resuming and not self.start.at_beginning)
        return self.progress

    def finish(self, progress: Progress) -> None:
        """The iteration came to its end. Does nothing where another one has begun since."""
        progress.running = False
        if progress is not self.progress:
            return
        self.epoch = self.epoch + 1 if self.asked_epoch is None else self.asked_epoch
        self.asked_epoch = None
        self.progress = None
        self._forget()

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is that of ``epoch``. Naming the epoch that is about to be resumed changes nothing."""
        if self.pending and epoch == self.epoch:
            return
        if self.progress is not None and self.progress.running:
            self.asked_epoch = None if epoch == self.epoch else epoch
            return
        self.epoch = epoch
        self.pending, self.asked_epoch, self.progress = False, None, None
        self._forget()

    def restore(self, epoch: int, start: Start) -> None:
        """The next iteration goes on from here; one that is on no longer counts."""
        self._forget()
        self.epoch, self.start = epoch, start
        self.pending, self.asked_epoch, self.progress = True, None, None

    def now(self, geometry: Geometry) -> Start:
        """How much of the epoch all ranks have handed out."""
        return self.start.after(0 if self.progress is None else self.progress.handed, geometry)

    def _forget(self) -> None:
        self.start, self.key, self.workers = Start(), None, None
        self.sampler_state = self.data_state = None
