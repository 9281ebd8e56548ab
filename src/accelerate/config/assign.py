"""``name=value`` words turned into settings, whichever of its names a setting is called by."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable
from functools import cache

from accelerate.config.fields import Setting
from accelerate.config.run import all_settings
from accelerate.errors import ConfigError, UnknownKeyError

__all__ = ["named", "namespace_of"]

GIVEN = "_given"  # as cli.parser writes it


@cache
def _names() -> dict[str, Setting]:
    """Settings by path, flag, file key (with and without its section) and variable."""
    found: dict[str, Setting] = {}
    for item in all_settings():
        found[item.path] = item
    for item in all_settings():
        names = [item.dest, *(flag.lstrip("-").replace("-", "_") for flag in item.flags if flag.startswith("--"))]
        for keys in ((item.yaml,) if item.yaml else ()) + item.yaml_aliases:
            names += [".".join(keys), keys[-1]]
        for name in [*names, *item.environment]:
            found.setdefault(name, item)
    return found


def named(name: str) -> Setting:
    """The setting called ``name``.

    Raises:
        UnknownKeyError: there is none; the nearest names are offered.
    """
    item = _names().get(name.lstrip("-").replace("-", "_"))
    if item is None:
        near = difflib.get_close_matches(name, _names(), n=1, cutoff=0.6)
        hint = f" Did you mean {near[0]}?" if near else " `accelerate launch --help` lists them."
        raise UnknownKeyError(f"There is no setting called {name!r}.{hint}")
    return item


def namespace_of(words: Iterable[str]) -> argparse.Namespace:
    """``name=value`` words as a parsed command line, for :func:`accelerate.config.resolve.resolve`.

    Raises:
        ConfigError: a word has no ``=``.
        UnknownKeyError: a name is not known.
    """
    found = argparse.Namespace()
    given: set[str] = set()
    for word in words:
        name, separator, value = word.partition("=")
        if not separator:
            raise ConfigError(f"--set {word}: write it as name=value, such as --set mixed_precision=bf16.")
        item = named(name.strip())
        setattr(found, item.dest, value.strip())
        given.add(item.dest)
    setattr(found, GIVEN, given)
    return found
