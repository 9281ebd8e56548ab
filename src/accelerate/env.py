"""The process environment: the only module that reads or writes it.

Four functions serve everybody (:func:`get`, :func:`put`, :func:`drop`, :func:`snapshot`); typed readers stand beside
them (:func:`flag`, :func:`integer`, :func:`choice`). How a setting's value is written as text is :func:`encode`, and
how it is read back :func:`decode`. Names of settings come from field metadata (``config.fields``), never from here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from enum import Enum
from functools import wraps
from typing import Any, TypeVar

from accelerate.errors import EnvironmentValueError

__all__ = [
    "are_libraries_initialized",
    "choice",
    "clear_environment",
    "convert_dict_to_env_variables",
    "decode_bool",
    "drop",
    "encode",
    "flag",
    "get",
    "get_int_from_env",
    "integer",
    "parse_choice_from_env",
    "parse_flag_from_env",
    "patch_environment",
    "publish",
    "purge_accelerate_environment",
    "put",
    "snapshot",
    "str_to_bool",
]

T = TypeVar("T")

_TRUE = frozenset({"y", "yes", "t", "true", "on", "1"})
_FALSE = frozenset({"n", "no", "f", "false", "off", "0"})
_BOOLEAN_WORDS = "true, false, yes, no, on, off, 1, 0"


# ---- the four functions everybody uses


def get(name: str, default: str | None = None) -> str | None:
    """The text of a variable, or ``default`` where it is not set."""
    return os.environ.get(name, default)


def put(name: str, value: object) -> None:
    """Sets a variable to the text of ``value`` (see :func:`encode`); None removes it."""
    if value is None:
        drop(name)
    else:
        os.environ[name] = encode(value)


def drop(*names: str) -> None:
    """Removes variables; those that are not set are passed over."""
    for name in names:
        os.environ.pop(name, None)


def snapshot() -> dict[str, str]:
    """A copy of the whole environment."""
    return dict(os.environ)


def publish(values: Mapping[str, object]) -> None:
    """Sets every variable of ``values``; a value of None removes its variable."""
    for name, value in values.items():
        put(name, value)


# ---- text and values


def encode(value: object) -> str:
    """How a value is written into a variable: booleans in lower case, enum members by value, lists with commas."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return encode(value.value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(encode(item) for item in value)
    return str(value)


def decode_bool(text: str) -> bool:
    """The truth value of a word.

    Raises:
        ValueError: the word is none of true, false, yes, no, on, off, t, f, y, n, 1 and 0.
    """
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(f"{text!r} is not a truth value; use one of {_BOOLEAN_WORDS}")


# ---- typed readers


def flag(name: str, default: bool = False) -> bool:
    """The truth value of a variable, or ``default`` where it is unset or empty.

    Raises:
        EnvironmentValueError: it is set to something that is not a truth value.
    """
    text = get(name)
    if not text:
        return default
    try:
        return decode_bool(text)
    except ValueError as error:
        raise EnvironmentValueError(
            f"Environment variable {name}={text!r} is not a truth value: {_BOOLEAN_WORDS}."
        ) from error


def integer(name: str, default: int | None = None) -> int | None:
    """The whole number in a variable, or ``default`` where it is unset or empty.

    Raises:
        EnvironmentValueError: it is set to something that is not a whole number.
    """
    text = get(name)
    if not text:
        return default
    try:
        return int(text)
    except ValueError as error:
        raise EnvironmentValueError(f"Environment variable {name}={text!r} has to be a whole number.") from error


def choice(name: str, choices: Iterable[str], default: str) -> str:
    """The word in a variable, spelt as in ``choices`` (case is not looked at), or ``default``.

    Raises:
        EnvironmentValueError: it is set to a word that is none of the choices.
    """
    text = get(name)
    if not text:
        return default
    words = list(choices)
    for word in words:
        if word.lower() == text.lower():
            return word
    raise EnvironmentValueError(f"Environment variable {name}={text!r} has to be one of {', '.join(words)}.")


# ---- public functions of the interface


def str_to_bool(value: str, to_bool: bool = False) -> int | bool:
    """1 or 0 (or True or False with ``to_bool``) for a word such as ``yes``, ``off`` or ``1``.

    Raises:
        ValueError: the word is not a truth value.
    """
    truth = decode_bool(str(value))
    return truth if to_bool else int(truth)


def parse_flag_from_env(key: str, default: bool = False) -> bool:
    """The truth value of a variable, or ``default`` where it is unset."""
    return flag(key, default)


def parse_choice_from_env(key: str, default: str = "no") -> str:
    """The text of a variable, or ``default`` where it is unset."""
    return os.environ.get(key, str(default))


def get_int_from_env(env_keys: Iterable[str], default: int) -> int:
    """The first number that is not negative among the variables ``env_keys``, else ``default``."""
    for name in env_keys:
        value = integer(name)
        if value is not None and value >= 0:
            return value
    return default


def are_libraries_initialized(*library_names: str) -> list[str]:
    """Those of the named modules that this process has imported already."""
    return [name for name in library_names if name in sys.modules]


@contextmanager
def patch_environment(**kwargs: Any) -> Iterator[None]:
    """Sets variables (names in upper case) for the length of a ``with`` block, and restores what was there before."""
    wanted = {name.upper(): value for name, value in kwargs.items()}
    before = {name: get(name) for name in wanted}
    publish(wanted)
    try:
        yield
    finally:
        publish(before)


@contextmanager
def clear_environment() -> Iterator[None]:
    """Empties the environment for the length of a ``with`` block; what the block sets is dropped at its end."""
    before = snapshot()
    os.environ.clear()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _without_traces(function: Callable[..., T]) -> Callable[..., T]:
    """``function``, after which no new or changed ``ACCELERATE_*`` variable is left."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> T:
        before = {name: value for name, value in snapshot().items() if name.startswith("ACCELERATE_")}
        try:
            return function(*args, **kwargs)
        finally:
            drop(*(name for name in snapshot() if name.startswith("ACCELERATE_") and name not in before))
            publish(before)

    return run


def purge_accelerate_environment(func_or_cls: T) -> T:
    """A function, or a test class, that leaves the ``ACCELERATE_*`` variables as it found them.

    Of a class, every ``test*`` method is treated so, also those of subclasses defined later.
    """
    if not isinstance(func_or_cls, type):
        return _without_traces(func_or_cls)  # type: ignore[arg-type, return-value]

    def treat(owner: type) -> None:
        for name, member in list(vars(owner).items()):
            if name.startswith("test") and callable(member):
                setattr(owner, name, _without_traces(member))

    treat(func_or_cls)
    inherited = func_or_cls.__init_subclass__

    def follow(cls: type, /, **kwargs: Any) -> None:
        inherited(**kwargs)
        treat(cls)

    func_or_cls.__init_subclass__ = classmethod(follow)  # type: ignore[assignment]
    return func_or_cls


def convert_dict_to_env_variables(current_env: MutableMapping[str, Any]) -> list[str]:
    """``NAME=value`` lines, each with its line end, of the variables that a shell or an environment file can hold.

    A variable whose name or value would be read as something else (line breaks, ``;``, ``<``, ``>``, blanks) is left
    out, with a notice that names it.
    """
    import logging

    lines = []
    for name, value in current_env.items():
        text = str(value)
        if any(sign in text or sign in name for sign in ("\n", ";", "<", ">", " ")):
            # The value is not shown: it may be a secret.
            logging.getLogger(__name__).warning(
                "Variable %s is left out of the environment file: a line there cannot hold its value.", name
            )
        else:
            lines.append(f"{name}={text}\n")
    return lines
