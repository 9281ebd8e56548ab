"""Train PyTorch models on any hardware and any number of processes."""

from accelerate._version import __version__

__all__ = ["__version__"]
