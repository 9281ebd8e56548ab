"""One line a job, from the right line of code, with or without a state."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from accelerate.errors import EnvironmentValueError
from accelerate.logging import MultiProcessAdapter, get_logger
from accelerate.runtime import isolated


@pytest.fixture
def logger(caplog: pytest.LogCaptureFixture) -> Iterator[MultiProcessAdapter]:
    adapter = get_logger("accelerate.test", "DEBUG")
    adapter._said.clear()
    with isolated():
        yield adapter
    adapter.logger.setLevel(logging.NOTSET)


def launched(monkeypatch: pytest.MonkeyPatch, rank: int, local_rank: int | None = None, world: int = 4) -> None:
    place = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank if local_rank is None else local_rank}
    place |= {"LOCAL_WORLD_SIZE": world if local_rank is None else world // 2}
    for name, value in (place | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500}).items():
        monkeypatch.setenv(name, str(value))


def test_works_before_any_state(logger: MultiProcessAdapter, caplog: pytest.LogCaptureFixture) -> None:
    logger.info("step %d", 3)
    assert caplog.messages == ["step 3"]


def test_only_rank_zero_speaks_before_any_state(
    logger: MultiProcessAdapter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch, 1)
    logger.info("quiet")
    logger.info("loud", main_process_only=False)
    launched(monkeypatch, 0)
    logger.info("main")
    assert caplog.messages == ["loud", "main"]


def test_contradictory_environment_does_not_lose_messages(
    logger: MultiProcessAdapter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "three")
    logger.error("look")
    assert caplog.messages == ["look"]


def test_record_names_the_callers_line(logger: MultiProcessAdapter, caplog: pytest.LogCaptureFixture) -> None:
    logger.info("a")
    logger.log(logging.WARNING, "b")
    logger.warning_once("c")
    logger.info("d", in_order=True)
    assert len(caplog.records) == 4
    assert {record.filename for record in caplog.records} == {"test_logging.py"}
    assert {record.funcName for record in caplog.records} == {"test_record_names_the_callers_line"}


def test_warning_once_by_text_and_arguments(logger: MultiProcessAdapter, caplog: pytest.LogCaptureFixture) -> None:
    for value in (1, 1, 2, 1):
        logger.warning_once("value %d", value)
    logger.warning_once("list %s", [1])
    logger.warning_once("list %s", [1])
    assert caplog.messages == ["value 1", "value 2", "list [1]"]


def test_level_by_argument_leaves_other_loggers_alone() -> None:
    before = logging.root.level
    adapter = get_logger("accelerate.test.level", log_level="error")
    assert adapter.logger.level == logging.ERROR
    assert logging.root.level == before
    with pytest.raises(ValueError, match="LOUD"):
        get_logger("accelerate.test.level", log_level="loud")


def test_level_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_LOG_LEVEL", "critical")
    assert get_logger("accelerate.test.environment").logger.level == logging.CRITICAL
    monkeypatch.setenv("ACCELERATE_LOG_LEVEL", "noisy")
    with pytest.raises(EnvironmentValueError, match="ACCELERATE_LOG_LEVEL='noisy'"):
        get_logger("accelerate.test.environment")


def test_disabled_level_says_nothing(logger: MultiProcessAdapter, caplog: pytest.LogCaptureFixture) -> None:
    logger.logger.setLevel(logging.ERROR)
    logger.info("x")
    logger.info("y", in_order=True)
    assert caplog.messages == []


def test_extra_of_the_call_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    adapter = MultiProcessAdapter(logging.getLogger("accelerate.test.extra"), {"job": "j1", "who": "adapter"})
    adapter.error("x", extra={"who": "call"})
    (record,) = caplog.records
    assert (record.job, record.who) == ("j1", "call")  # type: ignore[attr-defined]


def test_exception_keeps_its_traceback(logger: MultiProcessAdapter, caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("inner")
    except ValueError:
        logger.exception("outer")
    assert "ValueError: inner" in caplog.text
