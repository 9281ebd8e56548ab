"""The one module that touches the environment."""

from __future__ import annotations

import enum
import logging
import os

import pytest

from accelerate import env
from accelerate.errors import EnvironmentValueError

NAME = "ACCELERATE_TEST_VARIABLE"


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        (3, "3"),
        (0.5, "0.5"),
        (Colour.RED, "red"),
        (["a", "b"], "a,b"),
        ((True, 1), "true,1"),
    ],
)
def test_put_writes_what_get_reads(monkeypatch: pytest.MonkeyPatch, value: object, text: str) -> None:
    monkeypatch.setenv(NAME, "before")
    env.put(NAME, value)
    assert env.get(NAME) == text == env.snapshot()[NAME]


def test_put_none_and_drop_remove(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "x")
    env.put(NAME, None)
    assert env.get(NAME) is None
    assert env.get(NAME, "other") == "other"
    env.drop(NAME, "ACCELERATE_NEVER_SET")


def test_publish_sets_and_removes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "x")
    monkeypatch.setenv(NAME + "2", "y")
    env.publish({NAME: True, NAME + "2": None})
    assert env.get(NAME) == "true"
    assert env.get(NAME + "2") is None


@pytest.mark.parametrize("word", ["y", "YES", "t", "True", "on", "1"])
def test_words_for_true(word: str) -> None:
    assert env.str_to_bool(word) == 1
    assert env.str_to_bool(word, to_bool=True) is True


@pytest.mark.parametrize("word", ["n", "NO", "f", "False", "off", "0"])
def test_words_for_false(word: str) -> None:
    assert env.str_to_bool(word) == 0
    assert env.str_to_bool(word, to_bool=True) is False


def test_other_words_are_no_truth() -> None:
    with pytest.raises(ValueError, match="'maybe' is not a truth value"):
        env.str_to_bool("maybe")


def test_flag_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env.parse_flag_from_env(NAME) is False
    assert env.parse_flag_from_env(NAME, True) is True
    monkeypatch.setenv(NAME, "on")
    assert env.parse_flag_from_env(NAME) is True
    monkeypatch.setenv(NAME, "maybe")
    with pytest.raises(EnvironmentValueError, match=f"{NAME}='maybe' .*true, false"):
        env.parse_flag_from_env(NAME)


def test_integer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env.integer(NAME, 4) == 4
    monkeypatch.setenv(NAME, "-7")
    assert env.integer(NAME) == -7
    monkeypatch.setenv(NAME, "seven")
    with pytest.raises(EnvironmentValueError, match=f"{NAME}='seven' has to be a whole number"):
        env.integer(NAME)


def test_first_number_that_is_not_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "-1")
    monkeypatch.setenv(NAME + "2", "5")
    assert env.get_int_from_env([NAME, NAME + "2"], 3) == 5
    assert env.get_int_from_env([NAME, NAME + "3"], 3) == 3


def test_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env.choice(NAME, ["no", "fp16"], "no") == "no"
    monkeypatch.setenv(NAME, "FP16")
    assert env.choice(NAME, ["no", "fp16"], "no") == "fp16"
    assert env.parse_choice_from_env(NAME) == "FP16"
    monkeypatch.setenv(NAME, "fp61")
    with pytest.raises(EnvironmentValueError, match=f"{NAME}='fp61' has to be one of no, fp16"):
        env.choice(NAME, ["no", "fp16"], "no")


def test_patch_environment_restores_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "before")

    def fail() -> None:
        with env.patch_environment(accelerate_test_variable=5, accelerate_other="x"):
            assert os.environ[NAME] == "5"
            assert os.environ["ACCELERATE_OTHER"] == "x"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert os.environ[NAME] == "before"
    assert "ACCELERATE_OTHER" not in os.environ


def test_clear_environment_restores_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "before")
    whole = dict(os.environ)
    with env.clear_environment():
        assert not os.environ
        os.environ["ACCELERATE_LEFT"] = "1"
    assert dict(os.environ) == whole


def test_purged_function_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "before")

    @env.purge_accelerate_environment
    def change() -> str:
        os.environ[NAME] = "after"
        os.environ["ACCELERATE_LEFT"] = "1"
        os.environ["UNRELATED_LEFT"] = "1"
        return "done"

    monkeypatch.delenv("UNRELATED_LEFT", raising=False)
    assert change() == "done"
    assert os.environ[NAME] == "before"
    assert "ACCELERATE_LEFT" not in os.environ
    assert os.environ.pop("UNRELATED_LEFT") == "1"


def test_purged_class_and_its_subclasses_leave_no_trace() -> None:
    @env.purge_accelerate_environment
    class Base:
        def test_one(self) -> None:
            os.environ["ACCELERATE_LEFT"] = "1"

        def other(self) -> None:
            os.environ["ACCELERATE_LEFT"] = "1"

    class Child(Base):
        def test_two(self) -> None:
            os.environ["ACCELERATE_LEFT"] = "1"

    for name in ("test_one", "test_two"):
        getattr(Child(), name)()
        assert "ACCELERATE_LEFT" not in os.environ
    Child().other()
    assert os.environ.pop("ACCELERATE_LEFT") == "1"


def test_environment_file_lines_leave_out_what_a_line_cannot_hold(caplog: pytest.LogCaptureFixture) -> None:
    given = {"A": "b", "P": "a=b", "C": "d;e", "G H": "x", "N": "a b", "M": "a\nb", "L": "<x>"}
    with caplog.at_level(logging.WARNING):
        assert env.convert_dict_to_env_variables(given) == ["A=b\n", "P=a=b\n"]
    assert [record.getMessage().split()[1] for record in caplog.records] == ["C", "G", "N", "M", "L"]


def test_libraries_that_were_imported() -> None:
    assert env.are_libraries_initialized("os", "no_such_library_here") == ["os"]
