"""What a ``prepare`` call says that DeepSpeed's configuration may have left open."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["Facts", "batch_size_of", "hidden_size_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """ranks: over how many the batch is spread. steps: micro-batches of one optimizer step, as the Accelerator knows
    them; 1 says nothing. batches: this rank's batch sizes, one a loader. moves: how many steps of a schedule one
    optimizer step is. optimizer, scheduler: what ``prepare`` was given, or None. device: the device's type.
    trains: an optimizer comes with the model. loaders_given: the batches are those of this very call.
    """

    ranks: int = 1
    steps: int = 1
    batches: tuple[int, ...] = ()
    hidden_size: int | None = None
    optimizer: Any = None
    scheduler: Any = None
    moves: int = 1
    device: str = "cpu"
    trains: bool = True
    loaders_given: bool = True


def batch_size_of(loader: Any) -> int | None:
    """How many samples a rank's batch of a prepared loader has; None where the loader does not say."""
    for owner in (loader, getattr(loader, "batch_sampler", None)):
        size = getattr(owner, "batch_size", None)
        if isinstance(size, int) and size > 0:
            return size
    return None


def hidden_size_of(model: Any) -> int | None:
    """The width of a model whose ``config`` names it; the largest where there are several."""
    found: list[int] = []
    for config in _configs(getattr(model, "config", None)):
        size = _get(config, "hidden_size")
        sizes = _get(config, "hidden_sizes")
        found += [size] if isinstance(size, int) else []
        found += [value for value in sizes if isinstance(value, int)] if isinstance(sizes, (list, tuple)) else []
        if found:
            break
    return max(found) if found else None


def _configs(config: Any) -> Iterable[Any]:
    """A model's configuration, then those of its parts."""
    if config is None:
        return
    yield config
    for name in ("text_config", "decoder", "language_config", "llm_config"):
        part = _get(config, name)
        if part is not None:
            yield part


def _get(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, dict) else getattr(config, name, None)
