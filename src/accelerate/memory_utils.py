"""Compatibility path, older than ``accelerate.utils.memory``."""

from accelerate.comm.retry import find_executable_batch_size
from accelerate.devices.memory import clear_device_cache, release_memory, should_reduce_batch_size

__all__ = ["clear_device_cache", "find_executable_batch_size", "release_memory", "should_reduce_batch_size"]
