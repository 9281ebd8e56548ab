"""Waiting for the other processes without an Accelerator at hand."""

from __future__ import annotations

from accelerate.state import PartialState

__all__ = ["wait_for_everyone"]


def wait_for_everyone() -> None:
    """Collective. Returns when every process has called it; at once in a single process."""
    PartialState().wait_for_everyone()
