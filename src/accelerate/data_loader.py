"""Public names of :mod:`accelerate.data`."""

from torch.utils.data import DataLoader

from accelerate.data.adapter import DataLoaderAdapter
from accelerate.data.dispatch import DataLoaderDispatcher
from accelerate.data.iterable import IterableDatasetShard
from accelerate.data.mixin import DataLoaderStateMixin
from accelerate.data.prepare import prepare_data_loader
from accelerate.data.sampler import BatchSamplerShard, SeedableRandomSampler, SkipBatchSampler, get_sampler
from accelerate.data.shard import DataLoaderShard
from accelerate.data.skip import SkipDataLoader, skip_first_batches

__all__ = [
    "BatchSamplerShard",
    "DataLoader",
    "DataLoaderAdapter",
    "DataLoaderDispatcher",
    "DataLoaderShard",
    "DataLoaderStateMixin",
    "IterableDatasetShard",
    "SeedableRandomSampler",
    "SkipBatchSampler",
    "SkipDataLoader",
    "get_sampler",
    "prepare_data_loader",
    "skip_first_batches",
]
