"""Models that do not fit: planned over devices, main memory and disk, loaded piece by piece, run by hooks."""

from __future__ import annotations

import logging

from accelerate.logging import get_logger

__all__ = ["logger", "speaker"]

# One logger for all of it, so that a filter on it sees every message; `speaker` is its voice once a job.
logger = logging.getLogger(__name__)
speaker = get_logger(__name__)
