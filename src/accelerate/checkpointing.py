"""Compatibility path: the parts of a checkpoint one by one."""

from __future__ import annotations

from accelerate.checkpoint.pieces import (
    load_accelerator_state,
    load_custom_state,
    save_accelerator_state,
    save_custom_state,
)

__all__ = ["load_accelerator_state", "load_custom_state", "save_accelerator_state", "save_custom_state"]
