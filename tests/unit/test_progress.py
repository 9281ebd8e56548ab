"""A progress bar is drawn once a machine."""

from __future__ import annotations

import pytest

from accelerate.progress import tqdm
from accelerate.runtime import isolated


def launched(monkeypatch: pytest.MonkeyPatch, rank: int, local_rank: int) -> None:
    place = {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": 2}
    for name, value in (place | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500}).items():
        monkeypatch.setenv(name, str(value))


def test_values_pass_through() -> None:
    with isolated():
        assert list(tqdm(range(3), disable=True)) == [0, 1, 2]
        assert list(tqdm(iterable=iter("ab"), desc="x", disable=True)) == ["a", "b"]


def test_drawn_on_the_local_main_process_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with isolated():
        launched(monkeypatch, rank=3, local_rank=1)
        assert tqdm(range(2)).disable is True
        with tqdm(range(2), main_process_only=False, leave=False) as bar:
            assert bar.disable is False
        launched(monkeypatch, rank=2, local_rank=0)
        with tqdm(range(2), leave=False) as bar:
            assert bar.disable is False


def test_boolean_in_place_of_the_iterable_is_refused() -> None:
    with pytest.raises(TypeError, match="main_process_only=True"):
        tqdm(True, range(3))
