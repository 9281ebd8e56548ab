"""FSDP by a plugin in code and by the launch at once."""

from __future__ import annotations

from typing import Any

import pytest

from accelerate.config.fsdp import FullyShardedDataParallelPlugin as Plugin
from accelerate.config.fsdp_agree import agree_with_launch
from accelerate.errors import ConflictError


def launched(monkeypatch: pytest.MonkeyPatch, said: dict[str, str]) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    for name, value in said.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("given", "said", "message"),
    [
        (
            {"fsdp_version": 1},
            {"FSDP_VERSION": "2"},
            "fsdp_version=1 in code and FSDP_VERSION=2 from the launch contradict",
        ),
        (
            {"fsdp_version": 2, "reshard_after_forward": True},
            {"FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "false"},
            "reshard_after_forward=True in code and FSDP_RESHARD_AFTER_FORWARD=false from the launch contradict",
        ),
        (
            {"fsdp_version": 2, "activation_checkpointing": True},
            {"FSDP_VERSION": "2", "FSDP_ACTIVATION_CHECKPOINTING": "false"},
            "activation_checkpointing=True in code and FSDP_ACTIVATION_CHECKPOINTING=false",
        ),
        (
            {"fsdp_version": 2, "transformer_cls_names_to_wrap": ["A"]},
            {"FSDP_VERSION": "2", "FSDP_TRANSFORMER_CLS_TO_WRAP": "B"},
            "FSDP_TRANSFORMER_CLS_TO_WRAP=B from the launch contradict",
        ),
    ],
)
def test_what_divides_a_model_otherwise_is_an_error(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], said: dict[str, str], message: str
) -> None:
    plugin = Plugin(**given)  # a script's own, made before anything is said
    launched(monkeypatch, said)
    with pytest.raises(ConflictError, match=message):
        agree_with_launch(plugin)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"fsdp_version": 2}, {}),
        (
            {"fsdp_version": 2, "reshard_after_forward": True},
            {"FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "true"},
        ),
        ({"fsdp_version": 2, "cpu_offload": True}, {"FSDP_VERSION": "2", "FSDP_OFFLOAD_PARAMS": "true"}),
        (
            {"fsdp_version": 2, "transformer_cls_names_to_wrap": ["A", "B"]},
            {"FSDP_VERSION": "2", "FSDP_TRANSFORMER_CLS_TO_WRAP": "A,B"},
        ),
    ],
)
def test_the_same_said_twice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, given: dict[str, Any], said: dict[str, str]
) -> None:
    plugin = Plugin(**given)
    launched(monkeypatch, said)
    agree_with_launch(plugin)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("given", "said", "told"),
    [
        # A launch whose file leaves the version open says 1: nobody chose it.
        ({"fsdp_version": 2}, {"FSDP_VERSION": "1"}, "fsdp_version=2 in code goes before FSDP_VERSION=1"),
        (
            {"fsdp_version": 2, "state_dict_type": "FULL_STATE_DICT"},
            {"FSDP_VERSION": "2", "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT"},
            "state_dict_type=FULL_STATE_DICT in code goes before FSDP_STATE_DICT_TYPE=SHARDED_STATE_DICT",
        ),
    ],
)
def test_what_harms_nothing_is_said_once(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    given: dict[str, Any],
    said: dict[str, str],
    told: str,
) -> None:
    plugin = Plugin(**given)
    launched(monkeypatch, said)
    for _ in range(2):
        agree_with_launch(plugin)
    assert caplog.text.count(told) == 1
