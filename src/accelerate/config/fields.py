"""One declaration per setting, from which command line, configuration file, environment, questions and docs are made.

A section is a dataclass whose fields are written with :func:`option` and whose ``SECTION`` says how its names are
prefixed. :func:`settings_of` gives the declarations with their names worked out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Literal

from accelerate.config.kinds import TEXT, Kind

__all__ = ["Option", "Section", "Setting", "option", "setting", "settings_of"]

_SAME = "\0same"  # the default of ``cli_default``: what the setting itself defaults to

Action = Literal["value", "on", "append"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Where the settings of one subject live: YAML section, flag prefix, heading in help, and its one-line account."""

    name: str
    title: str
    yaml: str | None = None
    flag_prefix: str = ""
    yaml_prefix: str = ""
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What is declared about a setting. ``flag`` and ``yaml`` are None where a setting has none."""

    default: Any
    kind: Kind
    help: str
    env: str | None
    env_aliases: tuple[str, ...]
    flag: str | bool | None
    flag_aliases: tuple[str, ...]
    flag_off: str | None
    action: Action
    dest: str | None
    yaml: str | bool | None
    yaml_aliases: tuple[str, ...]
    choices: tuple[str, ...]
    choice_aliases: tuple[tuple[str, str], ...]
    group: str | None
    cli_default: Any
    ask: str | None


def option(
    default: Any,
    *,
    kind: Kind = TEXT,
    help: str = "",
    env: str | None = None,
    env_aliases: tuple[str, ...] = (),
    flag: str | bool | None = True,
    flag_aliases: tuple[str, ...] = (),
    flag_off: str | None = None,
    action: Action = "value",
    dest: str | None = None,
    yaml: str | bool | None = True,
    yaml_aliases: tuple[str, ...] = (),
    choices: tuple[str, ...] = (),
    choice_aliases: tuple[tuple[str, str], ...] = (),
    group: str | None = None,
    cli_default: Any = _SAME,
    ask: str | None = None,
) -> Any:
    """A dataclass field that declares a setting.

    ``flag`` and ``yaml`` are True for the name that follows from section and field, text for another, None for none; a
    dotted ``yaml`` names a key inside a section. ``cli_default`` is what an attribute of the parsed command line holds
    where the flag was not given (part of the public interface), which need not be the default of the setting.
    """
    declared = Option(
        default=default,
        kind=kind,
        help=help,
        env=env,
        env_aliases=env_aliases,
        flag=flag,
        flag_aliases=flag_aliases,
        flag_off=flag_off,
        action=action,
        dest=dest,
        yaml=yaml,
        yaml_aliases=yaml_aliases,
        choices=choices,
        choice_aliases=choice_aliases,
        group=group,
        cli_default=default if isinstance(cli_default, str) and cli_default == _SAME else cli_default,
        ask=ask,
    )
    return field(default=default, metadata={"option": declared})


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A declaration in its place: ``path`` is the attribute (``fsdp.version``), the rest are its names elsewhere."""

    path: str
    section: Section
    option: Option
    dest: str
    flags: tuple[str, ...]
    yaml: tuple[str, ...] | None
    yaml_aliases: tuple[tuple[str, ...], ...]

    @property
    def field(self) -> str:
        """The attribute's name within its section."""
        return self.path.rpartition(".")[2]

    @property
    def flag(self) -> str | None:
        """The flag as messages spell it."""
        return next((flag for flag in self.flags if flag.startswith("--")), None)

    @property
    def environment(self) -> tuple[str, ...]:
        """The variables it is read from; it is written to the first."""
        return ((self.option.env,) if self.option.env else ()) + self.option.env_aliases

    def read(self, value: Any) -> Any:
        """The value that text of a flag or variable, or a value of a file, stands for.

        Raises:
            ValueError: it is of another kind, or none of the choices.
        """
        option = self.option
        if not option.choices:
            return option.kind(value)
        if value is False and "no" in (word.lower() for word in option.choices):
            value = "no"  # YAML reads a bare `no` as False
        text = str(value)
        for alias, word in option.choice_aliases:
            if text.lower() == alias.lower():
                return option.kind(word)
        for word in option.choices:
            if word.lower() == text.lower():
                return option.kind(word)
        raise ValueError(f"{value!r} is not one of {', '.join(option.choices)}")


def _both_spellings(flags: tuple[str, ...]) -> tuple[str, ...]:
    spelt = dict.fromkeys(flags)
    for flag in flags:
        if flag.startswith("--") and "_" in flag:
            spelt.setdefault("--" + flag[2:].replace("_", "-"))
    return tuple(spelt)


def _yaml_path(section: Section, key: str) -> tuple[str, ...]:
    if "." in key:
        return tuple(part for part in key.split(".") if part)
    return (section.yaml, key) if section.yaml else (key,)


def setting(section: Section, name: str, declared: Option) -> Setting:
    """The declaration of the field ``name`` of a section, with flag, YAML and attribute names worked out."""
    flag = declared.flag
    if flag is True:
        flag = f"--{section.flag_prefix}{name}"
    flags = _both_spellings((*((flag,) if flag else ()), *declared.flag_aliases))
    key = declared.yaml
    if key is True:
        key = f"{section.yaml_prefix}{name}"
    aliases = [_yaml_path(section, alias) for alias in declared.yaml_aliases]
    if section.yaml and section.yaml_prefix and key:
        aliases.append((section.yaml, name))  # files of early releases left the prefix out
    return Setting(
        path=f"{section.name}.{name}" if section.name else name,
        section=section,
        option=declared,
        dest=declared.dest or (str(flag).lstrip("-") if flag else f"{section.flag_prefix}{name}"),
        flags=flags,
        yaml=_yaml_path(section, str(key)) if key else None,
        yaml_aliases=tuple(aliases),
    )


@cache
def settings_of(owner: type) -> tuple[Setting, ...]:
    """The settings that a section declares, in order."""
    section: Section = owner.SECTION  # type: ignore[attr-defined]
    return tuple(
        setting(section, item.name, item.metadata["option"]) for item in fields(owner) if "option" in item.metadata
    )
