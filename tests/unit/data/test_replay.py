"""Going ahead in what can only be read from its beginning."""

from __future__ import annotations

import sys

import pytest

from accelerate.data import replay
from accelerate.data.replay import run_ahead


@pytest.mark.parametrize("watched", [False, True])
def test_entries_are_read_and_dropped(
    watched: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replay, "_SHORT", 10)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: watched)
    numbers = iter(range(100))
    run_ahead(numbers, 20, "batches")
    assert next(numbers) == 20
    run_ahead(numbers, 5, "batches")
    assert next(numbers) == 26
    run_ahead(numbers, 500, "items")
    assert next(numbers, None) is None
    shown = capsys.readouterr()
    assert ("Going ahead by 20 batches" in shown.err) is watched and "by 5 " not in shown.err and not shown.out
