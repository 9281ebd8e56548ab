"""What the smaller commands share: how a parser is made, and how a command is run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from accelerate.errors import AccelerateError

__all__ = ["call", "new_parser", "run", "words_of"]


def new_parser(name: str, about: str, subparsers: Any = None) -> argparse.ArgumentParser:
    """The parser of ``accelerate <name>``; with ``subparsers`` it is added there."""
    from accelerate.cli.parser import HelpFormatter

    words: dict[str, Any] = {"description": about, "formatter_class": HelpFormatter, "allow_abbrev": False}
    if subparsers is None:
        return argparse.ArgumentParser(f"accelerate {name}", **words)
    parser: argparse.ArgumentParser = subparsers.add_parser(name, **words)
    return parser


def run(
    name: str,
    parser: argparse.ArgumentParser,
    command: Callable[[argparse.Namespace], Any],
    argv: Sequence[str] | None,
) -> int:
    """Runs a command on a command line (None: ``sys.argv``) and returns its exit code."""
    return call(name, command, parser.parse_args(words_of(argv)))


def words_of(argv: Sequence[str] | None) -> list[str]:
    """The words of a command line, by default this process's own."""
    return list(sys.argv[1:] if argv is None else argv)


def call(name: str, command: Callable[[argparse.Namespace], Any], args: argparse.Namespace) -> int:
    """Runs a command on parsed arguments and returns its exit code; an error raised on purpose is shown as a line."""
    try:
        code = command(args)
        sys.stdout.flush()
    except AccelerateError as error:
        from accelerate.cli.main import report_error

        return report_error(name, error)
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code if isinstance(code, int) else 0
