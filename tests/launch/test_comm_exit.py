"""What real processes tell each other when they end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import torch
from accelerate import PartialState
from accelerate.utils import gather

held = PartialState()
assert gather(torch.tensor([held.process_index])).tolist() == [0, 1]
if sys.argv[1] == "uneven" and held.process_index == 0:
    gather(torch.ones(1))
"""


@pytest.mark.timeout(150)
@pytest.mark.parametrize("how", ["even", "uneven"])
def test_the_end_of_a_program(how: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), how]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=140, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert "Fatal" not in done.stderr and "terminate called" not in done.stderr
    if how == "even":
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode == 1
    assert f"Rank 0 lost its connection to rank 1 in gather() at {script}:10 in <module>." in done.stderr
    assert "rank 1: finished its program" in done.stderr
