"""A training run that is killed at random instants goes on as if it had not been."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch._dynamo  # noqa: F401  # lives are forks: what takes long to import is there before

from benchmarks import kills


@pytest.mark.parametrize("asynchronous", [False, True])
def test_ten_deaths_change_nothing(tmp_path: Path, asynchronous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # Bytes need not reach the disk to outlive a process.
    monkeypatch.setenv("ACCELERATE_CHECKPOINT_FSYNC", "0")
    told = kills.live_and_die(10, seed=1, asynchronous=asynchronous, folder=tmp_path, longest=0.12)
    assert told.killed == 10
    assert told.faults(kills.undisturbed(told.last, tmp_path)) == []
    assert len({life[0][0] for life in told.lives if life}) > 1
    # The last life cleared away what the dead ones left, and kept one checkpoint.
    assert len(told.leftovers) == 1


def test_a_difference_would_be_seen() -> None:
    seen = {step: ((step,), float(step)) for step in range(1, 10)}
    honest = kills.Lives(lives=[[(step, seen[step]) for step in range(1, 6)], [(s, seen[s]) for s in range(4, 10)]])
    assert honest.faults(seen) == []
    for lives, word in (
        ([[(1, seen[2])]], "undisturbed"),
        ([[(s, seen[s]) for s in range(1, 4)], [(s, seen[s]) for s in range(7, 9)]], "begins at step 7"),
        ([[(s, seen[s]) for s in range(1, 9)], [(7, seen[7])], [(4, seen[4])]], "6 was complete"),
        ([[(s, seen[s]) for s in range(1, 6)], [(3, seen[3])]], "nothing was saved"),
        ([[(1, seen[1]), (3, seen[3])]], "step 2 was never seen"),
    ):
        assert any(word in fault for fault in kills.Lives(lives=lives).faults(seen)), word
