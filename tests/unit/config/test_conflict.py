"""The same setting said by code and by the launch."""

from __future__ import annotations

import logging

import pytest

from accelerate.config.conflict import reconcile
from accelerate.config.enums import PrecisionType
from accelerate.errors import ConflictError


def test_one_side_or_none() -> None:
    assert reconcile("mixed_precision", None, None, "no") == "no"
    assert reconcile("mixed_precision", None, "bf16", "no") == "bf16"
    assert reconcile("mixed_precision", "fp16", None, "no") == "fp16"


def test_both_the_same_in_other_words(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert reconcile("mixed_precision", PrecisionType.BF16, "bf16", "no") is PrecisionType.BF16
        assert reconcile("backend", "GLOO", "gloo", None) == "GLOO"
    assert caplog.text == ""


def test_code_goes_first_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert (
                reconcile("mixed_precision", "bf16", "fp16", "no", launch="ACCELERATE_MIXED_PRECISION=fp16") == "bf16"
            )
    assert [record.getMessage() for record in caplog.records] == [
        "mixed_precision='bf16' in code goes before ACCELERATE_MIXED_PRECISION=fp16."
    ]


def test_notices_are_for_the_first_rank(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with caplog.at_level(logging.WARNING):
        assert reconcile("gradient_accumulation_steps", 2, 4, 1) == 2
    assert caplog.text == ""


def test_what_the_launch_has_acted_on_is_an_error() -> None:
    with pytest.raises(ConflictError, match="strategy='fsdp' in code and strategy='deepspeed' from the launch"):
        reconcile("strategy", "fsdp", "deepspeed", "ddp")
    with pytest.raises(ConflictError, match="here and there contradict each other"):
        reconcile("anything", 1, 2, 0, code="here", launch="there", rule="error")
    assert reconcile("strategy", "fsdp", "deepspeed", "ddp", rule="code") == "fsdp"
