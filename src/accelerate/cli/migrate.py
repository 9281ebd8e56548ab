"""``accelerate migrate``: configuration files of every age in today's form."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate.cli.base import new_parser, run
from accelerate.config.files import default_config_path, find_config_file, read_config_file
from accelerate.config.resolve import resolve
from accelerate.config.save import text_of, write
from accelerate.errors import ConfigError

__all__ = ["main", "migrate_command", "migrate_command_parser"]


def migrate_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """The parser of ``accelerate migrate``; with ``subparsers`` it is added there."""
    about = "Rewrite configuration files of older releases in today's form."
    parser = new_parser("migrate", about, subparsers)
    parser.add_argument("files", nargs="*", metavar="FILE", help="The files. Default: the one that launches read.")
    parser.add_argument("--dry_run", "--dry-run", action="store_true", help="Show what would change, write nothing.")
    if subparsers is not None:
        parser.set_defaults(func=migrate_command)
    return parser


def migrate_command(args: argparse.Namespace) -> int:
    """Rewrites the files of a parsed command line, all of them or, if one cannot be read, none; returns 0.

    Raises:
        ConfigError: a file is missing, has unknown keys or contradicts itself.
    """
    paths = [_path(name) for name in args.files or [None]]
    plans = [(path, *_today(path)) for path in paths]
    for path, text, config, notices in plans:
        before = path.read_text(encoding="utf-8")
        if before == text:
            print(f"{path} is in today's form.")
            continue
        for notice in notices:
            print(f"{path}: {notice}")
        if args.dry_run:
            old, new = before.splitlines(keepends=True), text.splitlines(keepends=True)
            sys.stdout.writelines(difflib.unified_diff(old, new, str(path), f"{path} (today's form)"))
        else:
            print(f"{write(config, path)} rewritten.")
    return 0


def _path(name: str | None) -> Path:
    path = find_config_file(name)
    if path is None:
        raise ConfigError(f"There is no configuration at {default_config_path()}. `accelerate config` writes one.")
    return path


def _today(path: Path) -> tuple[str, Any, tuple[str, ...]]:
    read = read_config_file(path)
    if read.deepspeed:
        raise ConfigError(f"{path} is DeepSpeed's own configuration, which is not rewritten.")
    resolved = resolve(None, {}, read)
    return text_of(resolved.config, path), resolved.config, resolved.notices


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``accelerate migrate`` on ``argv`` (``sys.argv`` by default) and returns the exit code."""
    return run("migrate", migrate_command_parser(), migrate_command, argv)


if __name__ == "__main__":
    sys.exit(main())
