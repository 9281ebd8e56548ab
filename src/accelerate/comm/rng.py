"""Giving every rank the random state of rank 0."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from accelerate import devices
from accelerate.comm.operations import broadcast
from accelerate.config.enums import RNGType

__all__ = ["synchronize_rng_state", "synchronize_rng_states"]


def synchronize_rng_state(rng_type: RNGType | str | None = None, generator: torch.Generator | None = None) -> None:
    """Collective. Gives the generator ``rng_type`` ("torch", a device kind, or "generator" for the one passed) the
    state that it has on rank 0.

    Raises:
        ValueError: "generator" without one, or a type that is not known.
    """
    kind = RNGType(rng_type) if rng_type is not None else RNGType.TORCH
    if kind is RNGType.GENERATOR:
        if generator is None:
            raise ValueError('rng_type="generator" needs the generator to synchronise. Pass generator=.')
        generator.set_state(broadcast(generator.get_state()))
    elif kind is RNGType.TORCH:
        torch.set_rng_state(broadcast(torch.get_rng_state()))
    else:
        rng = devices.get(kind.value).rng
        state = rng.get_current()
        if state is not None:
            rng.set_current(broadcast(state))


def synchronize_rng_states(rng_types: Iterable[RNGType | str], generator: torch.Generator | None = None) -> None:
    """Collective. :func:`synchronize_rng_state` for each of ``rng_types``."""
    for rng_type in rng_types:
        synchronize_rng_state(RNGType(rng_type), generator=generator)
