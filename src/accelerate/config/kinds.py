"""How a setting's value is read, whatever it arrives as: text of a flag or a variable, or a value of a YAML file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from accelerate.env import decode_bool

__all__ = ["BOOLEAN", "ITEMS", "MACHINES", "MAPPING", "NUMBER", "RESHARD", "TEXT", "TRIPLE", "WHOLE", "WORDS", "Kind"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value: its name in messages, the reader, and the word that stands for it in help."""

    name: str
    read: Callable[[Any], Any]
    metavar: str

    def __call__(self, value: Any) -> Any:
        """The value read.

        Raises:
            ValueError: it cannot be read as this kind.
        """
        try:
            return self.read(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{value!r} is not {self.name}") from error


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    if isinstance(value, str):
        return decode_bool(value)
    raise TypeError


def _whole(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise TypeError
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    return float(value)


def _text(value: Any) -> str:
    if isinstance(value, (dict, list, tuple)):
        raise TypeError
    return str(value)


def _items(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(str(item) for item in value)


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",") if word.strip())
    return tuple(str(item) for item in value)


def _triple(value: Any) -> tuple[bool, bool, bool]:
    parts = value.strip("()[] ").split(",") if isinstance(value, str) else list(value)
    first, second, third = (_boolean(part) for part in parts)
    return first, second, third


def _reshard(value: Any) -> bool | int | str:
    """True or False, the size of the group to keep whole, or (version 1) the name of a sharding strategy."""
    if isinstance(value, (bool, int)):
        return value
    text = str(value).strip()
    if text.isdigit() and text not in ("0", "1"):
        return int(text)
    try:
        return decode_bool(text)
    except ValueError:
        if not text.replace("_", "").isalpha():
            raise
        return text.upper()


def _machines(value: Any) -> int | tuple[int, int]:
    """A number of machines, or ``least:most``."""
    if isinstance(value, str) and ":" in value:
        least, most = (int(part) for part in value.split(":"))
        if not 1 <= least <= most:
            raise ValueError
        return least, most
    return _whole(value)


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError
    return dict(value)


TEXT = Kind("text", _text, "TEXT")
WHOLE = Kind("a whole number", _whole, "N")
NUMBER = Kind("a number", _number, "X")
BOOLEAN = Kind("a truth value (true or false)", _boolean, "BOOL")
ITEMS = Kind("a list", _items, "ITEM")
WORDS = Kind("words with commas between them", _words, "A,B")
TRIPLE = Kind("three truth values, such as (false, false, true)", _triple, "B,B,B")
RESHARD = Kind("true, false, a group size or a sharding strategy", _reshard, "BOOL|N")
MACHINES = Kind("a number of machines, or least:most", _machines, "N")
MAPPING = Kind("a mapping", _mapping, "MAP")
