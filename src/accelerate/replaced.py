"""Functions that other libraries replace under a public name: they are looked up when they are called."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["replacement"]


def replacement(name: str, own: Any, *modules: str) -> Any:
    """What somebody put under ``name`` into one of the public ``modules`` instead of ``own``, or None."""
    for module in modules:
        held = getattr(sys.modules.get(module), "__dict__", {}).get(name, own)
        if held is not own:
            return held
    return None
