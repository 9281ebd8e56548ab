"""The public path of the scheduler wrapper."""

from accelerate.strategies.scheduler import AcceleratedScheduler as AcceleratedScheduler
