"""Who takes part in a save."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from accelerate.checkpoint.asynchronous import with_main
from accelerate.checkpoint.meeting import Late, Meeting
from accelerate.errors import CheckpointError, RankLeftError


class Memory:
    """A board that all ranks of a test share."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        return self.values.get(key)

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def swap(self, key: str, expected: bytes, value: bytes) -> bool:
        with self.lock:
            if self.values.get(key) != expected:
                return False
            self.values[key] = value
            return True

    def drop(self, key: str) -> None:
        self.values.pop(key, None)


class Job:
    """Meetings of ``size`` ranks over one board."""

    def __init__(self, size: int = 3, board: Memory | None = None, **settings: Any) -> None:
        self.board = board or Memory()
        self.ranks = [
            Meeting(board=self.board, rank=rank, size=size, **{"patience": 5.0, "late": 0.2, **settings})
            for rank in range(size)
        ]
        for meeting in self.ranks:
            meeting.open()
            meeting.at("point")

    @property
    def main(self) -> Meeting:
        return self.ranks[0]


class Thread(threading.Thread):
    """Keeps what its function returned or raised."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self.work, self.value, self.error = work, None, None
        self.start()

    def run(self) -> None:
        try:
            self.value = self.work()
        except Exception as error:
            self.error = error

    def result(self) -> Any:
        self.join(10)
        if self.error is not None:
            raise self.error
        return self.value


def test_everybody_comes_and_hears_what_was_decided() -> None:
    job = Job()

    def follow(meeting: Meeting) -> Any:
        session = meeting.come(b"part %d" % meeting.rank)
        assert isinstance(session, str)
        return meeting.decision(session)["folder"], meeting.outcome(session)

    threads = [Thread(lambda m=m: follow(m)) for m in job.ranks[1:]]  # type: ignore[misc]
    came = job.main.count(grace=5.0)
    assert came.parts == {1: b"part 1", 2: b"part 2"}
    assert came.missing == ()
    job.main.tell({"folder": "f"})
    job.main.end(came.session, {})
    assert [thread.result() for thread in threads] == [("f", {}), ("f", {})]


def test_the_main_process_goes_on_without_those_who_stay_away() -> None:
    job = Job(size=2)
    start = time.monotonic()
    assert job.main.count(grace=0.2).missing == (1,)
    first = time.monotonic() - start
    # The second time it is expected that they stay away.
    start = time.monotonic()
    assert job.main.count(grace=0.2).missing == (1,)
    assert time.monotonic() - start < first


def test_a_rank_that_comes_when_it_is_over_does_not_wait_for_ever() -> None:
    job = Job(size=2)
    job.main.count(grace=0.05)
    assert job.ranks[1].come(b"") == Late()
    # It is not counted by a later save either.
    assert job.main.count(grace=0.05).missing == (1,)


def test_a_rank_that_is_early_for_the_next_save_waits_for_it() -> None:
    job = Job(size=2)
    job.main.count(grace=0.05)  # alone, at an earlier point
    job.ranks[1].at("later")
    early = Thread(lambda: job.ranks[1].come(b"mine"))
    time.sleep(0.4)  # longer than it takes to feel late
    job.main.at("later")
    came = job.main.count(grace=5.0)
    assert came.parts == {1: b"mine"}
    assert early.result() == came.session


def test_saves_follow_one_another_at_one_point() -> None:
    job = Job(size=2)
    for number in range(3):
        follower = Thread(lambda n=number: job.ranks[1].come(b"%d" % n))  # type: ignore[misc]
        came = job.main.count(grace=5.0)
        assert came.parts == {1: b"%d" % number}
        assert follower.result() == came.session


def test_what_an_earlier_process_left_is_not_taken_for_this_one() -> None:
    dead = Job(size=2, patience=0.6)
    waiting = Thread(lambda: dead.ranks[1].come(b"stale"))
    while not dead.board.values["here/1"].startswith(b"open"):
        time.sleep(0.01)
    job = Job(size=2, board=dead.board)
    assert job.main.count(grace=0.1).missing == (1,)
    with pytest.raises(CheckpointError):
        waiting.result()


def test_an_error_of_the_main_process_reaches_those_who_wait_for_its_decision() -> None:
    job = Job(size=2)
    follower = Thread(lambda: job.ranks[1].decision(str(job.ranks[1].come(b""))))
    came = job.main.count(grace=5.0)
    job.main.end(came.session, {"error": "disk full"})
    assert follower.result() == {"error": "disk full"}


def test_a_main_process_that_never_comes_is_an_error() -> None:
    job = Job(size=2, patience=0.1)
    with pytest.raises(CheckpointError, match="did not call it within"):
        job.ranks[1].come(b"")


class Watching:
    doubt = 0.0

    def __init__(self, gone: dict[int, str], place: str | None = None) -> None:
        self.left, self.place = gone, place

    def gone(self) -> dict[int, str]:
        return self.left

    def elsewhere(self) -> str | None:
        return self.place


@pytest.mark.parametrize(
    ("watching", "words"),
    [(Watching({0: "raised OSError"}), "left: raised OSError"), (Watching({}, "is in gather at x.py:3"), "x.py:3")],
)
def test_a_main_process_that_left_or_waits_elsewhere_is_found_out(
    watching: Watching, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accelerate.checkpoint.meeting._LOOK", 0.01)
    job = Job(size=2, watch=lambda: watching)
    with pytest.raises(RankLeftError, match=words):
        job.ranks[1].come(b"")


def test_receipts_are_collected_from_every_rank() -> None:
    job = Job(patience=0.2)
    for meeting in job.ranks[1:]:
        meeting.leave("s", "receipt", b"%d" % meeting.rank)
    assert job.main.collect("s", "receipt", [1, 2]) == {1: b"1", 2: b"2"}
    with pytest.raises(CheckpointError, match="Rank 1"):
        job.main.collect("s", "receipt", [1])


def test_a_handle_on_another_rank_waits_for_the_main_process() -> None:
    job = Job(size=2)
    save = with_main("folder", job.ranks[1], "s-1")
    assert not save.done()
    with pytest.raises(TimeoutError):
        save.wait(timeout=0.05)
    job.main.end("s-1", {})
    assert save.done()
    assert save.wait() == save.wait(timeout=0.1) == "folder"
    failed = with_main("folder", job.ranks[1], "s-2")
    job.main.end("s-2", {"error": "disk full"})
    with pytest.raises(CheckpointError, match="disk full"):
        failed.wait()
    assert failed.wait() == "folder"
