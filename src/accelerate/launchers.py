"""Compatibility path: functions that start ranks from a notebook or a test."""

from __future__ import annotations

from accelerate.launch.notebook import debug_launcher, notebook_launcher, test_launch

__all__ = ["debug_launcher", "notebook_launcher", "test_launch"]
