"""Logging in the order of ranks."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from accelerate.logging import get_logger
from accelerate.test_utils.world import run_world


def test_in_order_of_rank(tmp_path: Path) -> None:
    said = tmp_path / "said.txt"

    def job(rank: int, n: int) -> None:
        from accelerate.state import PartialState

        PartialState(cpu=True)
        logger = get_logger("accelerate.test.order", "INFO")
        handler = logging.FileHandler(said)
        logger.logger.addHandler(handler)
        time.sleep(0.05 * (n - rank))  # the later the rank, the earlier it arrives
        logger.info("first %d", rank, in_order=True)
        logger.info("second %d", rank, in_order=True)
        logger.info("main")

    run_world(job, 3, how="fork")
    assert said.read_text().splitlines() == [
        *(f"first {rank}" for rank in range(3)),
        *(f"second {rank}" for rank in range(3)),
        "main",
    ]
