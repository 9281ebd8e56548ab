"""A loader that rank 0 reads for all: every rank gets its part sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from accelerate.comm import here
from accelerate.data.adapter import DataLoaderAdapter
from accelerate.data.channel import Channel, Message
from accelerate.data.cut import NOT_GIVEN, rows, shares, sliced
from accelerate.data.iterate import real_samples, start_run, stop_run
from accelerate.data.mixin import DataLoaderStateMixin
from accelerate.data.plan import Plan, Run, shard_of
from accelerate.data.position import Geometry
from accelerate.data.share import Emission
from accelerate.data.sharing import Sharing
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


class Dispatching(Sharing):
    """Rank 0 reads for all; a place in the data is the same whatever the number of ranks."""

    def geometry(self, loader: Any) -> Geometry:
        """See :class:`Sharing`."""
        shard = shard_of(loader)
        size = fixed_size(shard) if shard is not None else getattr(loader.batch_sampler, "batch_size", 1)
        return Geometry(per_step=self.group(loader._accelerate), batch_size=size)

    def group(self, plan: Plan) -> int:
        """See :class:`Sharing`."""
        return 1 if plan.split_batches else plan.count

    def fills(self, plan: Plan) -> bool:
        """See :class:`Sharing`."""
        return plan.even_batches

    def own_batches(self, loader: Any, batches: int) -> int:
        """See :class:`Sharing`."""
        return batches

    def ranks_matter(self, loader: Any) -> bool:
        """See :class:`Sharing`."""
        return False

    def batches_left(self, loader: Any) -> int | None:
        """See :class:`Sharing`."""
        plan, shard = loader._accelerate, shard_of(loader)
        if plan.run is None:
            return None
        if loader.end_of_dataloader:
            return 0
        geometry = plan.run.geometry
        place = plan.run.start.after(plan.run.progress.handed, geometry)
        left = None if shard is None else shard.batches_after(place)
        if left is None:
            return None
        steps, rest = divmod(left, int(geometry.per_step))
        return steps + 1 if rest and not plan.drop_last else steps


class DataLoaderDispatcher(DataLoaderAdapter, DataLoaderStateMixin):
    """A loader that only rank 0 iterates. It sends each rank its own part of every step, whatever is in it.

    Takes what DataLoader takes. ``split_batches``: a batch is cut into parts, otherwise each rank gets a whole one.
    ``slice_fn(batch, slice, process_index, num_processes)`` cuts in another way. ``skip_batches`` and ``iteration`` are
    those of :class:`DataLoaderShard`. Iterating it is collective.
    """

    _accelerate_sharing = Dispatching()

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
        super().__init__(dataset, use_stateful_dataloader=use_stateful_dataloader, _accelerate=plan, **kwargs)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names its own iterator class
        plan, channel = self._accelerate, _connected(self._accelerate)
        run = start_run(self, reads=channel.reads)
        done, stop = False, stop_run  # no global is there any more when the interpreter exits
        try:
            for message in _sending(self, run, channel) if channel.reads else _listening(channel):
                run.progress.handed += 1
                if message.status != GIVEN:
                    done = message.status == LAST
                    self.end_of_dataloader = True
                    self.remainder = message.number
                yield message.data if plan.move is None else plan.move(message.data)
            done = True
            plan.position.finish(run.progress)
        finally:
            stop(self, run)
            if not done:
                channel.leave()

    def __len__(self) -> int:
        plan, shard = self._accelerate, shard_of(self)
        batches = len(shard) if shard is not None else super().__len__() + plan.skip
        if not plan.split_batches:
            whole, rest = divmod(batches, plan.count)
            more = bool(rest) and not plan.drop_last and (plan.even_batches or plan.index < rest)
            batches = whole + int(more)
        return max(0, batches - plan.skip)


def _connected(plan: Plan) -> Channel:
    """Collective the first time: ranks tell which part each of them gets."""
    if plan.channel is None:
        group = plan.collectives or here.collectives()
        told = group.all_gather_object((plan.index, next(_NUMBERS)))
        plan.channel = Channel(group, f"loader {told[0][1]}", [index for index, _ in told])
    channel: Channel = plan.channel
    channel.begin()
    return channel


def _listening(channel: Channel) -> Iterator[Message]:
    while True:
        message = channel.receive()
        if message.status == FAILED:
            raise CollectiveError(f"Rank 0 reads this loader for all ranks, and could not go on: {message.data}")
        if message.status == NONE:
            return
        yield message
        if message.status == LAST:
            return


def _sending(loader: DataLoaderDispatcher, run: Run, channel: Channel) -> Iterator[Message]:
    """Reads, and sends. An error here is told to the others before it is raised."""
    plan = loader._accelerate
    steps = _known_steps(plan, run, run.emission) if run.emission is not None else _fetched_steps(plan, run)
    head: list[Any] = []
    while True:
        try:
            step = next(steps, None)
            parts = [Message(status=NONE)] * plan.count if step is None else _messages(plan, run, step, head)
        except BaseException as error:
            failed = Message(status=FAILED, data=f"{type(error).__name__}: {error}")
            channel.send([failed] * channel.size)
            raise
        own = channel.send([parts[index] for index in channel.parts])
        if own.status == NONE:
            return
        yield own
        if own.status == LAST:
            return


def _messages(plan: Plan, run: Run, step: Step, head: list[Any]) -> list[Message]:
    size, width = run.geometry.batch_size, run.geometry.per_step
    filled = run.emission is not None and plan.even_batches  # by the sampler, which costs no memory
    if len(head) < width and not (filled and size is not None):
        head.extend(step.batches[: width - len(head)])
    if plan.slice_fn is not None:
        parts, real = sliced(step.batches, plan.count, plan.slice_fn, even=plan.even_batches, head=head)
    elif filled and not plan.split_batches:
        parts, real = step.batches, 0
    else:
        parts, real = shares(
            step.batches, plan.count, split=plan.split_batches, size=size, even=plan.even_batches, head=head
        )
    if step.following == 0 and step.real is not None:
        real = step.real
    elif step.following == 0 and not real and size is not None:
        real = sum(rows(batch) or 1 for batch in step.batches)
        real = real if real < size * width else 0
    uneven = not plan.even_batches and not plan.split_batches
    return [_message(index, part, step.following, real, uneven) for index, part in enumerate(parts)]


def _message(index: int, part: Any, following: int | None, real: int, uneven: bool) -> Message:
    if part is NOT_GIVEN:
        return Message(status=NONE)
    if following == 0:
        return Message(status=LAST, number=real, data=part)
    last_here = uneven and following is not None and following <= index
    return Message(status=LAST_HERE if last_here else GIVEN, data=part)


def _known_steps(plan: Plan, run: Run, emission: Emission) -> Iterator[Step]:
    """The sampler knows how many batches there are, so none has to be fetched ahead."""
    position, width, take, fetched = plan.position, run.geometry.per_step, run.resumption.snapshot, 0
    while batches := list(islice(run.iterator, width)):
        fetched += len(batches)
        if position.progress is run.progress:
            if emission.snapshots:
                position.sampler_state = emission.snapshots.popleft()
            if take is not None:
                position.data_state = take()
        left = None if emission.base is None else emission.base - fetched
        real = real_samples(emission, run.geometry) if left == 0 else None
        yield Step(batches, left if left is None or left < width else None, real)


def _fetched_steps(plan: Plan, run: Run) -> Iterator[Step]:
    """Batches for one step are fetched ahead, to know the last one. The state is taken before that."""
    position, width, take = plan.position, run.geometry.per_step, run.resumption.snapshot
    least = width if plan.drop_last else 1
    batches = list(islice(run.iterator, width))
    while len(batches) >= least:
        state = None if take is None else take()
        following = list(islice(run.iterator, width)) if len(batches) == width else []
        if len(following) < least:
            following = []
        if take is not None and position.progress is run.progress:
            position.data_state = state
        yield Step(batches, len(following) if len(following) < width else None)
        batches = following
