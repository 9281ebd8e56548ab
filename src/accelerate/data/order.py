"""The order of the samples: the same on every rank, and the same again after a resume.

Whatever is random in a sampler is made to depend on one key an epoch. With a seedable sampler (the default) the key
comes from a seed and the number of the epoch; otherwise it is drawn from the random state when the epoch begins, as
plain torch does, and is part of the state.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import torch
from torch.utils.data import RandomSampler, Sampler, SequentialSampler

from accelerate.data.sampler import DrawnRandomSampler, SeedableRandomSampler
from accelerate.data.seeds import draw, mix
from accelerate.data.source import is_plain, is_stateful

__all__ = ["Order", "RandomStreams", "random_sampler", "samplers"]

_FIXED = (SequentialSampler, SeedableRandomSampler, DrawnRandomSampler)


def samplers(owner: Any) -> Iterator[Any]:
    """A batch sampler and the samplers inside it, under whatever name, outermost first."""
    seen: set[int] = set()
    waiting = [owner]
    while waiting:
        part = waiting.pop(0)
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        for name, value in vars(part).items() if hasattr(part, "__dict__") else ():
            inner = value if isinstance(value, (list, tuple)) else [value]
            named = name in ("batch_sampler", "sampler") and value is not None and inner is not value
            waiting += [each for each in inner if named or isinstance(each, Sampler)]


def random_sampler(sampler: Any) -> bool:
    """Whether this is torch's (or torchdata's) shuffle and not somebody's own kind of it."""
    kind = type(sampler)
    return kind is RandomSampler or (kind.__name__ == "RandomSampler" and kind.__module__.startswith("torchdata."))


class RandomStreams:
    """A context with global random generators (torch, NumPy, Python) of its own, which go on where they were left.

    Python's costs as much to exchange as a small batch to make: it is left alone from the second time on if nothing was
    drawn from it the first time.
    """

    def __init__(self, seed: int) -> None:
        generator = torch.Generator()
        generator.manual_seed(mix(seed, 1))
        self._torch = generator.get_state()
        self._python = self._untouched = random.Random(mix(seed, 2)).getstate()
        self._with_python = True
        self._numpy = sys.modules.get("numpy.random")
        self._bits = None if self._numpy is None else self._numpy.MT19937(mix(seed, 3))

    def __enter__(self) -> None:
        self._exchange()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exchange()
        self._with_python = self._with_python and self._python != self._untouched

    def _exchange(self) -> None:
        outside = torch.get_rng_state()
        torch.set_rng_state(self._torch)
        self._torch = outside
        if self._with_python:
            held = random.getstate()
            random.setstate(self._python)
            self._python = held
        if self._numpy is not None:
            bits = self._numpy.get_bit_generator()
            self._numpy.set_bit_generator(self._bits)
            self._bits = bits


class Order:
    """Controls everything random in ``owner`` (a batch sampler, or a sampler), an epoch at a time.

    seed: of the seedable order; None where each epoch's key is drawn when it begins.
    agree: makes rank 0's value that of every rank; None where there is one rank, or where one rank reads for all.
    """

    def __init__(self, owner: Any, *, seed: int | None, agree: Callable[[Any], Any] | None = None) -> None:
        self.seed = seed
        self.agree = agree
        self.parts = list(samplers(owner))
        # An epoch that changes behind our back was set by somebody who holds the sampler itself.
        self._told = {id(part): getattr(part, "epoch", None) for part in self.parts}
        self._drawn: DrawnRandomSampler | None = None
        self._keyed: list[Any] = []
        self._generators: list[torch.Generator | None] = []  # those the user gave; each key is drawn from there
        self._unknown = False
        for part in self.parts:
            self._classify(part)

    def _classify(self, part: Any) -> None:
        if isinstance(part, DrawnRandomSampler):
            self._drawn = part
        elif isinstance(part, _FIXED) or is_plain(part) or hasattr(part, "set_epoch") or is_stateful(part):
            return
        elif hasattr(part, "generator"):
            self._keyed.append(part)
            self._generators.append(part.generator if isinstance(part.generator, torch.Generator) else None)
        elif not type(part).__module__.startswith(("torch.", "torchdata.", "builtins")):
            self._unknown = True

    @property
    def is_random(self) -> bool:
        """Whether there is a seed or key to know about."""
        seeded = any(isinstance(part, SeedableRandomSampler) for part in self.parts)
        return seeded or self._drawn is not None or bool(self._keyed) or self._unknown

    def changed_epoch(self) -> int | None:
        """The epoch that somebody gave directly to a sampler since the last time, or None."""
        for part in self.parts:
            own = getattr(part, "epoch", None)
            if hasattr(part, "set_epoch") and isinstance(own, int) and own != self._told[id(part)]:
                return own
        return None

    def told(self) -> None:
        """Takes the epochs that the samplers have now as ours."""
        self._told = {id(part): getattr(part, "epoch", None) for part in self.parts}

    def begin(self, epoch: int, key: int | str | None = None) -> tuple[int | str | None, RandomStreams | None]:
        """Collective where ``agree`` was given and the key is drawn. Sets everything for ``epoch``.

        Returns the key to remember (give it again to have the same order again; None where the seed tells all), and a
        context the sampler has to run in, or None.
        """
        for part in self.parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
            if isinstance(part, SeedableRandomSampler) and self.seed is not None:
                part.initial_seed = self.seed
        self.told()
        if self._drawn is not None:
            self._drawn.forced = key
            self._drawn.agree = self.agree
            return key, None
        if not self._keyed and not self._unknown:
            return None, None
        if self.seed is not None:
            number, told = mix(self.seed, epoch), None
        else:
            number = key if isinstance(key, int) else self._drawn_number()
            told = number
        for i, part in enumerate(self._keyed):
            part.generator = torch.Generator()
            part.generator.manual_seed(mix(number, i))
        return told, RandomStreams(number) if self._unknown else None

    @property
    def generators(self) -> list[torch.Generator]:
        """The generators of the user's that the keys of the next epochs are drawn from."""
        if self.seed is not None:
            return []
        drawn = None if self._drawn is None else self._drawn.generator
        return [own for own in (drawn, *self._generators) if own is not None]

    @property
    def drawn_key(self) -> int | str | None:
        """The key that a shuffle has drawn itself since ``begin``; it does so with the first index."""
        return None if self._drawn is None else self._drawn.key

    def _drawn_number(self) -> int:
        number = draw(next((own for own in self._generators if own is not None), None))
        return number if self.agree is None else int(self.agree(number))
