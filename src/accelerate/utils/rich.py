"""Compatibility path: tracebacks drawn by rich."""

from rich.traceback import install

__all__ = ["install"]
