"""Samplers: a shuffle that depends on a seed and the epoch, a rank's share of batches, and what is left of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler

from accelerate.data.position import Start
from accelerate.data.seeds import decoded, draw, encoded
from accelerate.data.share import Emission, divide
from accelerate.data.source import BatchSource, Feed, is_plain
from accelerate.errors import PrepareError

__all__ = [
    "BatchSamplerShard",
    "DrawnRandomSampler",
    "IndexShard",
    "SeedableRandomSampler",
    "SkipBatchSampler",
    "get_sampler",
]

_SEEDS = (1 << 64) - 1


class SeedableRandomSampler(RandomSampler):
    """A shuffle whose order depends on ``initial_seed`` and ``epoch`` alone: not on the random state of the moment, nor
    on how many ranks there are.

    Takes what RandomSampler takes, and ``data_seed``. Without it the seed is that of ``generator``, or torch's.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        seed = kwargs.pop("data_seed", None)
        super().__init__(*args, **kwargs)
        if seed is None:
            seed = torch.initial_seed() if self.generator is None else self.generator.initial_seed()
        self.initial_seed: int = seed
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        return self.from_index(0)

    def from_index(self, start: int) -> Iterator[int]:
        """The order of this epoch from its ``start``-th index on."""
        generator = torch.Generator()
        # The sum, and not a mixture, is what release 1.15.0 has: runs that began there go on in the same order here.
        generator.manual_seed(self.initial_seed + self.epoch & _SEEDS)
        return _shuffled(self, generator, start)

    def set_epoch(self, epoch: int) -> None:
        """Which epoch's order the next iteration gives."""
        self.epoch = epoch


class DrawnRandomSampler(RandomSampler):
    """A shuffle drawn from the random state (or ``generator``) when an iteration begins, as RandomSampler's is, and
    which can be had again: set ``forced`` to the ``key`` of the time before. ``agree`` gives every rank the same key.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agree: Callable[[Any], Any] | None = None
        self.key: int | str | None = None
        self.forced: int | str | None = None

    def __iter__(self) -> Iterator[int]:
        return self.from_index(0)

    def from_index(self, start: int) -> Iterator[int]:
        """The order from its ``start``-th index on. The key is drawn with the first index, as in plain torch."""
        key, self.forced = self.forced, None
        generator: torch.Generator | None = self.generator
        if key is None:
            key = draw() if generator is None else encoded(generator.get_state())
            key = key if self.agree is None else self.agree(key)
        self.key = key
        if isinstance(key, str) and generator is not None:
            generator.set_state(decoded(key))
            yield from _shuffled(self, generator, start)
            if not self.replacement and self.num_samples % len(self.data_source) == 0:
                torch.randperm(len(self.data_source), generator=generator)  # as torch does, which takes nothing of it
            return
        own = torch.Generator()
        own.manual_seed(int(key))
        yield from _shuffled(self, own, start)


def _shuffled(sampler: RandomSampler, generator: torch.Generator, start: int) -> Iterator[int]:
    """The indices RandomSampler draws from this generator, without the first ``start``."""
    size, wanted = len(sampler.data_source), sampler.num_samples
    if not sampler.replacement and wanted <= size:
        order: list[int] = _permutation(size, generator)[start:wanted].tolist()
        return iter(order)
    return _long_shuffle(generator, size, wanted, start, 32 if sampler.replacement else size, sampler.replacement)


def _permutation(size: int, generator: torch.Generator) -> torch.Tensor:
    # The same numbers as in 64 bits, in half the time: what is swapped at random places fits the cache better.
    return torch.randperm(size, generator=generator, dtype=torch.int32 if size < 1 << 31 else torch.int64)


def _long_shuffle(
    generator: torch.Generator, size: int, wanted: int, start: int, chunk: int, replacement: bool
) -> Iterator[int]:
    for first in range(0, wanted, chunk):
        count = min(chunk, wanted - first)
        if replacement:
            drawn = torch.randint(size, (count,), dtype=torch.int64, generator=generator)
        else:
            drawn = _permutation(size, generator)[:count]
        if first + count > start:
            yield from drawn[max(0, start - first) :].tolist()


class BatchSamplerShard(BatchSampler):
    """One rank's share of the batches of ``batch_sampler``.

    Of ``num_processes`` batches in a row each rank gets one (or a part of every batch, with ``split_batches``), so all
    get the same number. Where a batch has no fixed size, the largest goes to the rank that has had the least.

    even_batches: a last step that is short is filled with samples from the beginning. Otherwise some ranks get less.

    ``num_processes``, ``process_index`` and ``even_batches`` may be assigned to; the next iteration looks at them.
    Attributes it has not got are those of ``batch_sampler``.
    """

    def __init__(
        self,
        batch_sampler: BatchSampler,
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
        even_batches: bool = True,
    ) -> None:
        size = getattr(batch_sampler, "batch_size", None)
        if split_batches and size is not None and size % num_processes:
            raise PrepareError(
                f"split_batches=True shares out each batch, but a batch of {size} cannot be cut into {num_processes} "
                f"equal parts. Make batch_size a multiple of {num_processes}."
            )
        self.batch_sampler: Any = batch_sampler
        self.num_processes = num_processes
        self.process_index = process_index
        self.split_batches = split_batches
        self.even_batches = even_batches
        self.batch_size: Any = size
        self.drop_last = bool(getattr(batch_sampler, "drop_last", False))
        self.feed = Feed()
        self.emission = Emission()

    @property
    def total_length(self) -> int:
        """Batches of all ranks together."""
        return len(self.batch_sampler)

    def __len__(self) -> int:
        return self.steps(len(self.batch_sampler))

    def steps(self, batches: int) -> int:
        """How many batches this rank gets of so many base batches."""
        if self.split_batches or self.num_processes == 1:
            return batches
        whole, rest = divmod(batches, self.num_processes)
        if not rest or self.drop_last:
            return whole
        return whole + (1 if self.even_batches or self.process_index < rest else 0)

    def batches_after(self, start: Start) -> int | None:
        """Base batches that are left at ``start``; None where the batch sampler does not know its length."""
        inner: Any = self.batch_sampler
        try:
            if not is_plain(inner) or start.samples is None:
                return max(0, len(inner) - start.batches)
            left = max(0, len(inner.sampler) - start.samples)
        except (TypeError, NotImplementedError):
            return None
        size = int(inner.batch_size)
        return left // size if inner.drop_last else -(-left // size)

    def __iter__(self) -> Iterator[list[int]]:
        # Not a generator: what this iteration tells must be there as soon as it is made. torch makes two where there
        # are workers, and uses the second.
        self.emission = Emission()
        return divide(self, BatchSource(self.batch_sampler, self.feed), self.emission)

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on to the batch sampler and its sampler, where they take one."""
        for owner in (self.batch_sampler, getattr(self.batch_sampler, "sampler", None)):
            if owner is not None and hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)

    def __getattr__(self, name: str) -> Any:
        if name == "batch_sampler" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.batch_sampler, name)


class IndexShard(Sampler[int]):
    """One rank's share of single indices, for a loader that does not make batches."""

    def __init__(self, sampler: Any, num_processes: int = 1, process_index: int = 0, even_batches: bool = True) -> None:
        self.sampler = sampler
        self.shard = BatchSamplerShard(
            BatchSampler(sampler, 1, False), num_processes, process_index, even_batches=even_batches
        )

    def __len__(self) -> int:
        return len(self.shard)

    def __iter__(self) -> Iterator[int]:
        return map(itemgetter(0), iter(self.shard))

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on to the sampler, where it takes one."""
        self.shard.set_epoch(epoch)


class SkipBatchSampler(BatchSampler):
    """``batch_sampler`` without its first ``skip_batches`` batches, which are not read."""

    def __init__(self, batch_sampler: BatchSampler, skip_batches: int = 0) -> None:
        self.batch_sampler: Any = batch_sampler
        self.skip_batches = skip_batches
        self.batch_size: Any = getattr(batch_sampler, "batch_size", None)
        self.drop_last = bool(getattr(batch_sampler, "drop_last", False))

    @property
    def total_length(self) -> int:
        """Batches before any is skipped."""
        return len(self.batch_sampler)

    def __len__(self) -> int:
        return max(0, len(self.batch_sampler) - self.skip_batches)

    def __iter__(self) -> Iterator[list[int]]:
        inner = self.batch_sampler
        if isinstance(inner, BatchSamplerShard):
            inner.feed = Feed.skipping(self.skip_batches, inner)
            batches = iter(inner)
            inner.feed = Feed()
            return batches
        return iter(BatchSource(inner, Feed.skipping(self.skip_batches, inner)))

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on to the batch sampler, where it takes one."""
        if hasattr(self.batch_sampler, "set_epoch"):
            self.batch_sampler.set_epoch(epoch)

    def __getattr__(self, name: str) -> Any:
        if name == "batch_sampler" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.batch_sampler, name)


def get_sampler(dataloader: DataLoader[Any]) -> Any:
    """The sampler of single samples inside a loader, prepared or not; None for an iterable dataset."""
    batch_sampler: Any = dataloader.batch_sampler
    while isinstance(batch_sampler, (BatchSamplerShard, SkipBatchSampler)):
        batch_sampler = batch_sampler.batch_sampler
    return getattr(batch_sampler, "sampler", None) if batch_sampler is not None else dataloader.sampler
