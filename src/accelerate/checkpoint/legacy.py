"""Objects of checkpoints that have no manifest, known by the numbers of their files only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

from accelerate.checkpoint.adapter import OptimizerState, StateAdapter
from accelerate.checkpoint.parts import Record
from accelerate.checkpoint.reader import OpenCheckpoint
from accelerate.errors import CheckpointError

__all__ = ["pair_legacy_optimizers"]

# More optimizers than this are taken in order, and their shapes compared.
_MOST_TRIED = 5


def pair_legacy_optimizers(
    adapter: StateAdapter,
    source: OpenCheckpoint,
    records: Mapping[int, Record],
    wanted: Mapping[int, Any],
    models: Sequence[Any],
) -> tuple[dict[int, int], dict[int, OptimizerState]]:
    """(index now → index saved, state by index saved). Parameters are named by their order in the optimizer now.

    The order of ``prepare`` is kept unless shapes say that it was another.
    """
    names = {i: adapter.optimizer_names(optimizer, models) for i, optimizer in wanted.items()}
    layouts = {i: adapter.layout(optimizer, models) for i, optimizer in wanted.items()}
    fits: dict[tuple[int, int], OptimizerState] = {}
    for i, optimizer in wanted.items():
        for saved, record in records.items():
            state = _named(source, record, names[i], layouts[i])
            if state is not None and not adapter.check_optimizer_state(optimizer, models, state).missing:
                fits[i, saved] = state
    now, then = list(wanted), list(records)
    width = min(len(now), len(then))
    tries = permutations(then, width) if len(then) <= _MOST_TRIED else iter([tuple(then[:width])])
    best = max(tries, key=lambda order: sum((i, s) in fits for i, s in zip(now, order, strict=False)), default=())
    found = {i: saved for i, saved in zip(now, best, strict=False) if (i, saved) in fits}
    return found, {saved: fits[i, saved] for i, saved in found.items()}


def _named(
    source: OpenCheckpoint, record: Record, names: list[list[str]], layout: Mapping[str, Any]
) -> OptimizerState | None:
    try:
        return source.optimizer(record, layout, names)
    except CheckpointError as error:
        if type(error) is not CheckpointError:
            raise
        return None
