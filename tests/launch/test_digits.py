"""The example on real data, as the README starts it: with one process and with two."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "digits.py"
ACCELERATE = Path(sys.executable).parent / "accelerate"
TEST_DIGITS = 1797 // 5


def accuracy(command: list[str], processes: int) -> float:
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    said = re.findall(r"test accuracy ([\d.]+) % \((\d+) of (\d+) digits\), (\d+) process", done.stdout)
    assert len(said) == 1, done.stdout
    [(percent, right, seen, ran)] = said
    assert (int(seen), int(ran)) == (TEST_DIGITS, processes)
    assert float(percent) == pytest.approx(100 * int(right) / int(seen), abs=0.01)
    return float(percent)


@pytest.mark.timeout(240)
def test_digits_are_read_as_well_by_two_processes_as_by_one(tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    one = accuracy([sys.executable, str(EXAMPLE), "--save", str(weights)], 1)
    two = accuracy([str(ACCELERATE), "launch", "--cpu", "--num_processes", "2", str(EXAMPLE)], 2)
    assert one >= 97
    assert two >= 97
    assert abs(one - two) <= 1
    assert list(torch.load(weights)) == [f"{layer}.{part}" for layer in (0, 2, 5, 9) for part in ("weight", "bias")]
