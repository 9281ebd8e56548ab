"""Configuration tests start without settings in the environment, and with every notice still to be given."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accelerate.config.notice import forget_notices

PREFIXES = ("ACCELERATE_", "FSDP_", "MEGATRON_LM_", "PARALLELISM_CONFIG_")


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of a setting is set; what a test sets goes with it."""
    for name in list(os.environ):
        if name.startswith(PREFIXES) or name in ("OMP_NUM_THREADS", "RANK"):
            monkeypatch.delenv(name)
    forget_notices()
    yield
    forget_notices()


@pytest.fixture(scope="session")
def interface() -> dict[str, Any]:
    """Names, defaults and choices of the public interface."""
    data: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "interface.json").read_text())
    return data
