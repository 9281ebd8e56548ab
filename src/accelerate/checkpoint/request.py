"""What ``save_state`` and ``load_state`` were asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["LoadRequest", "SaveRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRequest:
    """Where and how to save. Either ``target`` is given, or ``root`` and the least ``number`` for automatic naming.

    ``limit`` is how many numbered checkpoints are kept; ``each_node`` lets the main process of every machine write.
    """

    target: Path | None = None
    root: Path | None = None
    number: int = 0
    limit: int | None = None
    safe: bool = True
    max_shard_size: int | str | None = None
    asynchronous: bool = False
    each_node: bool = False
    hooks: Sequence[Callable[..., Any]] = ()
    engine_options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """What to load. Either ``source`` is given, or ``root``, of which the newest is taken.

    strict: differences are an error, else they are reported. verify: compare checksums first. by_order: where nothing
    else tells objects apart, the order of ``prepare`` does. allow_pickle: files of older layouts may be unpickled.
    """

    source: Path | None = None
    root: Path | None = None
    strict: bool = True
    verify: bool = True
    by_order: bool = False
    allow_pickle: bool = False
    hooks: Sequence[Callable[..., Any]] = ()
    engine_options: dict[str, Any] = field(default_factory=dict)
