"""``accelerate test``: the self-check, started the way the configuration says."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate.cli.base import call, new_parser, words_of

__all__ = ["main", "self_test", "self_test_parser"]

SCRIPT = Path(__file__).resolve().parents[1] / "test_utils" / "scripts" / "self_check.py"


def self_test_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """The parser of ``accelerate test``; with ``subparsers`` it is added there. Further words are launch flags."""
    parser = new_parser(
        "test",
        "Check the installation and the configuration with a short self-check. Flags of accelerate launch may follow.",
        subparsers,
    )
    parser.add_argument(
        "--config_file", "--config-file", default=None, metavar="FILE", help="Configuration file to check."
    )
    if subparsers is not None:
        parser.set_defaults(func=self_test)
    return parser


def self_test(args: argparse.Namespace) -> int:
    """Launches the self-check with the configuration of a parsed command line and returns its exit code.

    Raises:
        AccelerateError: it could not be started.
    """
    from accelerate.cli.launch import launch_command, launch_command_parser

    words = [] if args.config_file is None else ["--config_file", args.config_file]
    try:
        launch_command(launch_command_parser().parse_args([*words, *getattr(args, "flags", ()), str(SCRIPT)]))
    except SystemExit as ended:
        print("accelerate test: the self-check failed.", file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else 1
    print("accelerate test: everything that was checked works.")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``accelerate test`` on ``argv`` (``sys.argv`` by default) and returns the exit code."""
    args, flags = self_test_parser().parse_known_args(words_of(argv))
    args.flags = flags
    return call("test", self_test, args)


if __name__ == "__main__":
    sys.exit(main())
