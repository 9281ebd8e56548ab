"""Fields of public plugins that take their value from the environment where code leaves them None."""

from __future__ import annotations

from dataclasses import field, fields
from functools import cache
from typing import Any

from accelerate import env
from accelerate.config.fields import Setting, settings_of
from accelerate.errors import EnvironmentValueError

__all__ = ["fill", "filled", "from_environment", "resting"]


def filled(section: type, name: str | None = None, *, fallback: Any = None) -> Any:
    """A dataclass field of a plugin: None in code means the variable of ``section``'s setting, else ``fallback``.

    Without ``name`` the setting is called like the field.
    """
    return field(default=None, metadata={"setting": (section, name), "fallback": fallback})


@cache
def _settings(section: type) -> dict[str, Setting]:
    return {item.field: item for item in settings_of(section)}


def from_environment(section: type, name: str) -> Any:
    """What the environment says about a setting, or None.

    Raises:
        EnvironmentValueError: the variable cannot be read; it is named, with what it may hold.
    """
    item = _settings(section)[name]
    for variable in item.environment:
        text = env.get(variable)
        if not text:
            continue
        try:
            return item.read(text)
        except ValueError as error:
            raise EnvironmentValueError(f"Environment variable {variable}: {error}. ({item.option.help})") from error
    return None


def fill(plugin: Any) -> dict[str, str]:
    """Sets the fields that are None from the environment, or to their fallbacks.

    Returns:
        field → variable for those that the environment decided.
    """
    taken: dict[str, str] = {}
    for item in fields(plugin):
        if "setting" not in item.metadata or getattr(plugin, item.name) is not None:
            continue
        section, other = item.metadata["setting"]
        name = other or item.name
        value = from_environment(section, name)
        if value is None:
            value = item.metadata["fallback"]
        else:
            taken[item.name] = _settings(section)[name].environment[0]
        setattr(plugin, item.name, value)
    return taken


def resting(plugin: Any) -> dict[str, Any]:
    """What each field is when neither code nor environment say anything."""
    values: dict[str, Any] = {}
    for item in fields(plugin):
        if "setting" in item.metadata:
            values[item.name] = item.metadata["fallback"]
        elif callable(item.default_factory):
            values[item.name] = item.default_factory()
        else:
            values[item.name] = item.default
    return values
