"""A loader that rank 0 reads for all: every rank gets its part sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from accelerate.comm import here
from accelerate.data.channel import Channel, Message
from accelerate.data.cut import NOT_GIVEN, rows, shares, sliced
from accelerate.data.iterate import PreparedLoader, Run
from accelerate.data.plan import Plan, shard_of
from accelerate.data.position import Geometry
from accelerate.data.source import fixed_size
from accelerate.errors import CollectiveError

__all__ = ["DataLoaderDispatcher"]

_NUMBERS = count(1)
GIVEN = 1
LAST = 2
LAST_HERE = 3
"""The last batch of this rank, while others get one more: it has to listen once more."""
NONE = 4
FAILED = 5


@dataclass(slots=True)
class Step:
    """Batches for one step. ``following`` is how many there are for the next one; None where that is as many.

    real: different samples in a last step that is not full, 0 in one that is; None where the batches have to tell.
    """

    batches: list[Any]
    following: int | None
    real: int | None = None


class DataLoaderDispatcher(PreparedLoader):
    """A loader that only rank 0 iterates. It sends each rank its own part of every step, whatever is in it.

    Takes what DataLoader takes. ``split_batches``: a batch is cut into parts, otherwise each rank gets a whole one.
    ``slice_fn(batch, slice, process_index, num_processes)`` cuts in another way. ``skip_batches`` and ``iteration`` are
    those of :class:`DataLoaderShard`. Iterating it is collective.
    """

    _channel: Channel | None = None
    _peers: list[int] | None = None

    def __init__(
        self,
        dataset: Any,
        split_batches: bool = False,
        skip_batches: int = 0,
        use_stateful_dataloader: bool = False,
        _drop_last: bool = False,
        _non_blocking: bool = False,
        slice_fn: Any = None,
        torch_device_mesh: Any = None,
        iteration: int = 0,
        **kwargs: Any,
    ) -> None:
        group = here.collectives()
        plan = Plan(
            count=group.size,
            index=group.rank,
            split_batches=split_batches,
            skip=skip_batches,
            drop_last=_drop_last,
            non_blocking=_non_blocking,
            slice_fn=slice_fn,
            mesh=torch_device_mesh,
            collectives=group,
        )
        plan.position.epoch = iteration
        super().__init__(dataset, use_stateful_dataloader=use_stateful_dataloader, _plan=plan, **kwargs)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names its own iterator class
        channel = self._connect()
        run = self._start(reads=channel.reads)
        done = False
        try:
            messages = self._sending(run, channel) if channel.reads else self._listening(channel)
            move = self._plan.move
            for message in messages:
                run.progress.handed += 1
                if message.status != GIVEN:
                    done = message.status == LAST
                    self.end_of_dataloader = True
                    self.remainder = message.number
                yield message.data if move is None else move(message.data)
            done = True
            self._plan.position.finish(run.progress)
        finally:
            self._stop(run)
            if not done:
                channel.leave()

    def __len__(self) -> int:
        plan, shard = self._plan, shard_of(self)
        batches = len(shard) if shard is not None else super().__len__() + plan.skip
        if not plan.split_batches:
            whole, rest = divmod(batches, plan.count)
            more = bool(rest) and not plan.drop_last and (plan.even_batches or plan.index < rest)
            batches = whole + int(more)
        return max(0, batches - plan.skip)

    def _geometry(self) -> Geometry:
        shard = shard_of(self)
        size = fixed_size(shard) if shard is not None else getattr(self.batch_sampler, "batch_size", 1)
        return Geometry(per_step=self._group(), batch_size=size)

    def _group(self) -> int:
        return 1 if self._plan.split_batches else self._plan.count

    def _fills(self) -> bool:
        return self._plan.even_batches

    def _ranks_matter(self) -> bool:
        return False

    def _own_batches(self, run: Run) -> int:
        return run.start.batches

    @property
    def batches_left(self) -> int | None:
        """How many batches come after the one that was handed out last; None where that is not known."""
        run = self._run
        if run is None:
            return None
        shard, geometry = shard_of(self), run.geometry
        left = None if shard is None else shard.batches_after(run.start.after(run.progress.handed, geometry))
        if left is None:
            return 0 if self.end_of_dataloader else None
        steps = left // geometry.per_step if self._plan.drop_last else -(-left // geometry.per_step)
        return 0 if self.end_of_dataloader else steps

    def _connect(self) -> Channel:
        """Collective the first time: ranks tell which part each of them gets."""
        group = self._plan.collectives or here.collectives()
        if self._channel is None or self._peers is None:
            told = group.all_gather_object((self._plan.index, next(_NUMBERS)))
            self._peers = [index for index, _ in told]
            self._channel = Channel(group, f"loader {told[0][1]}")
        self._channel.begin()
        return self._channel

    def _listening(self, channel: Channel) -> Iterator[Message]:
        while True:
            message = channel.receive()
            if message.status == FAILED:
                raise CollectiveError(f"Rank 0 reads this loader for all ranks, and could not go on: {message.data}")
            if message.status == NONE:
                return
            yield message
            if message.status == LAST:
                return

    def _sending(self, run: Run, channel: Channel) -> Iterator[Message]:
        """Reads, and sends. An error here is told to the others before it is raised."""
        steps = self._steps(run)
        head: list[Any] = []
        while True:
            try:
                step = next(steps, None)
                parts = [Message(status=NONE)] * self._plan.count if step is None else self._messages(step, head)
            except BaseException as error:
                failed = Message(status=FAILED, data=f"{type(error).__name__}: {error}")
                channel.send([failed] * channel.size)
                raise
            own = channel.send([parts[index] for index in self._peers or [0]])
            if own.status == NONE:
                return
            yield own
            if own.status == LAST:
                return

    def _messages(self, step: Step, head: list[Any]) -> list[Message]:
        plan, size = self._plan, self._geometry().batch_size
        if len(head) < self._group():
            head.extend(step.batches[: self._group() - len(head)])
        if plan.slice_fn is not None:
            parts, real = sliced(step.batches, plan.count, plan.slice_fn, even=plan.even_batches, head=head)
        else:
            parts, real = shares(
                step.batches, plan.count, split=plan.split_batches, size=size, even=plan.even_batches, head=head
            )
        if step.following == 0 and step.real is not None:
            real = step.real
        elif step.following == 0 and not real and size is not None:
            real = sum(rows(batch) or 1 for batch in step.batches)
            real = real if real < size * self._group() else 0
        return [self._message(index, part, step.following, real) for index, part in enumerate(parts)]

    def _message(self, index: int, part: Any, following: int | None, real: int) -> Message:
        if part is NOT_GIVEN:
            return Message(status=NONE)
        if following == 0:
            return Message(status=LAST, number=real, data=part)
        alone = following is not None and following <= index
        uneven = not self._plan.even_batches and not self._plan.split_batches
        return Message(status=LAST_HERE if alone and uneven else GIVEN, data=part)

    def _steps(self, run: Run) -> Iterator[Step]:
        if run.emission is not None:
            return self._known_steps(run)
        return self._fetched_steps(run)

    def _known_steps(self, run: Run) -> Iterator[Step]:
        """The sampler knows how many batches there are, so none has to be fetched ahead."""
        emission, position, fetched = run.emission, self._plan.position, 0
        while emission is not None and (batches := list(islice(run.iterator, self._group()))):
            fetched += len(batches)
            if emission.snapshots:
                position.sampler_state = emission.snapshots.popleft()
            if run.snapshot is not None:
                position.data_state = run.snapshot()
            left = None if emission.base is None else emission.base - fetched
            real = self._real(emission, run.geometry) if left == 0 else None
            yield Step(batches, left if left is None or left < self._group() else None, real)

    def _fetched_steps(self, run: Run) -> Iterator[Step]:
        """Batches for one step are fetched ahead, to know the last one. The state is taken before that."""
        width, position = self._group(), self._plan.position
        least = width if self._plan.drop_last else 1
        batches = list(islice(run.iterator, width))
        while len(batches) >= least:
            state = None if run.snapshot is None else run.snapshot()
            following = list(islice(run.iterator, width)) if len(batches) == width else []
            if len(following) < least:
                following = []
            if run.snapshot is not None and position.progress is run.progress:
                position.data_state = state
            yield Step(batches, len(following) if len(following) < width else None)
            batches = following
