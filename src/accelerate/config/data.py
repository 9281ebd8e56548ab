"""How data loaders are prepared."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DataLoaderConfiguration"]


@dataclass
class DataLoaderConfiguration:
    """How prepared loaders share data out. Read when a loader is prepared, so it may be changed until then.

    ``split_batches``: a batch of the loader is the global batch. ``dispatch_batches``: the main process reads for all
    (None: for iterable datasets). ``even_batches``: ranks get equally many batches.
    ``use_seedable_sampler``: shuffling follows a seed (``data_seed``) that checkpoints keep; on by default, so that a
    resumed run sees what it would have seen. ``non_blocking``: copies to the device do not wait.
    ``use_stateful_dataloader``: torchdata's StatefulDataLoader underneath.
    """

    split_batches: bool = False
    dispatch_batches: bool | None = None
    even_batches: bool = True
    use_seedable_sampler: bool = True
    data_seed: int | None = None
    non_blocking: bool = False
    use_stateful_dataloader: bool = False
