"""One answer for every setting, with its origin: command line before environment before file before scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.config.fields import Setting
from accelerate.config.files import ConfigFile, read_config_file
from accelerate.config.run import RunConfig, all_settings
from accelerate.config.settle import published, settle
from accelerate.config.sources import Origin, Source, active_sections, build
from accelerate.config.surroundings import read_surroundings
from accelerate.env import encode
from accelerate.errors import ConfigError, EnvironmentValueError

if TYPE_CHECKING:
    import argparse

__all__ = ["Origin", "Resolved", "Source", "active_sections", "resolve", "resolve_record"]

GIVEN = "_given"  # as cli.parser writes it


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A launch's settings, the source of each by path, and what is to be said to the user before it starts."""

    config: RunConfig
    sources: Mapping[str, Source]
    notices: tuple[str, ...] = ()
    file: ConfigFile | None = None

    def given(self, path: str) -> bool:
        """Whether a setting was said somewhere, be it the same as its default."""
        return self.sources[path].origin > Origin.DEFAULT

    def environment(self) -> dict[str, str]:
        """What the workers have to see: every setting with a variable that was said, of the sections in force."""
        return {name: encode(value) for name, value in published(self.config, self.sources).items()}

    def explain(self) -> Iterator[tuple[str, Source]]:
        """Settings that were said, in order, each with its source."""
        for item in all_settings():
            source = self.sources[item.path]
            if source.origin > Origin.DEFAULT:
                yield item.path, source


def resolve(
    args: argparse.Namespace | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | ConfigFile | None = None,
) -> Resolved:
    """The settings of a launch from a parsed command line, an environment and a configuration file, any of them None.

    Raises:
        ConfigError: a value is of the wrong kind or contradicts another; the message names its place.
        EnvironmentValueError: the same of a variable.
        UnknownKeyError: the file has keys that no setting owns.
    """
    read = read_config_file(file) if isinstance(file, (str, Path)) else file
    around = {
        path: Source(origin=Origin.SURROUNDINGS, where=where, value=value)
        for path, (value, where) in read_surroundings(environ or {}).items()
    }
    sources = {item.path: _source(item, args, environ or {}, read, around) for item in all_settings()}
    notices = settle(sources)
    return Resolved(
        config=build(sources),
        sources=sources,
        notices=(*(read.notices if read else ()), *notices),
        file=read,
    )


def resolve_record(config: RunConfig) -> Resolved:
    """The settings of a launch that code describes whole. What differs from its default was said.

    Raises:
        ConfigError: a value is of the wrong kind or contradicts another.
    """
    sources = {}
    for item in all_settings():
        value = attrgetter(item.path)(config)
        where = f"RunConfig: {item.path}"
        if value == item.option.default:
            sources[item.path] = Source(origin=Origin.DEFAULT, where="default", value=value)
        else:
            sources[item.path] = Source(
                origin=Origin.COMMAND_LINE, where=where, value=_read(item, value, where, ConfigError)
            )
    notices = settle(sources)
    return Resolved(config=build(sources), sources=sources, notices=tuple(notices))


def _source(
    item: Setting,
    args: argparse.Namespace | None,
    environ: Mapping[str, str],
    file: ConfigFile | None,
    around: Mapping[str, Source],
) -> Source:
    found = [*_from_command_line(item, args), *_from_environment(item, environ), *_from_file(item, file)]
    if item.path in around:
        found.append(around[item.path])
    chain: Source | None = None
    for source in reversed([*found, Source(origin=Origin.DEFAULT, where="default", value=item.option.default)]):
        lower = () if chain is None or chain.origin == Origin.DEFAULT else (chain, *chain.overrides)
        chain = Source(origin=source.origin, where=source.where, value=source.value, overrides=lower)
    assert chain is not None
    return chain


def _from_command_line(item: Setting, args: argparse.Namespace | None) -> Iterator[Source]:
    if args is None or not hasattr(args, item.dest):
        return
    value = getattr(args, item.dest)
    if item.dest not in getattr(args, GIVEN, ()) and value == item.option.cli_default:
        return
    if value is None:
        return
    where = item.flag or item.dest
    if item.option.flag_off and value is False:
        where = item.option.flag_off
    yield Source(origin=Origin.COMMAND_LINE, where=where, value=_read(item, value, where, ConfigError))


def _from_environment(item: Setting, environ: Mapping[str, str]) -> Iterator[Source]:
    for name in item.environment:
        text = environ.get(name)
        if text:
            value = _read(item, text, f"environment variable {name}", EnvironmentValueError)
            yield Source(origin=Origin.ENVIRONMENT, where=name, value=value)
            return


def _from_file(item: Setting, file: ConfigFile | None) -> Iterator[Source]:
    entry = file.values.get(item.path) if file else None
    if file is None or entry is None or entry.value is None:
        return
    where = file.where(entry)
    value = _read(item, entry.value, f"{where}: {entry.key}", ConfigError)
    yield Source(origin=Origin.FILE, where=where, value=value)


def _read(item: Setting, value: Any, where: str, error: type[ConfigError]) -> Any:
    try:
        return item.read(value)
    except ValueError as cause:
        raise error(f"{where}: {cause}. ({item.option.help})") from cause
