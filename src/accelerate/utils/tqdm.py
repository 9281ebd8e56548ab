"""Compatibility path of the progress bar."""

from accelerate.progress import tqdm

__all__ = ["tqdm"]
