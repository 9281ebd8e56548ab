"""``accelerate estimate-memory``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from accelerate.cli.base import new_parser, run
from accelerate.errors import NotBuiltError

__all__ = ["estimate_command", "estimate_command_parser", "main"]

DTYPES = ["float32", "float16", "int8", "int4"]


def estimate_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """The parser of ``accelerate estimate-memory``; with ``subparsers`` it is added there."""
    parser = new_parser("estimate-memory", "Show how much memory a model takes in each number format.", subparsers)
    parser.add_argument("model_name", help="Name of a model on the Hub.")
    parser.add_argument(
        "--library_name",
        "--library-name",
        default=None,
        choices=["timm", "transformers"],
        help="The library that the model belongs to, where the Hub does not say.",
    )
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES, help="Number formats to show.")
    parser.add_argument(
        "--trust_remote_code",
        "--trust-remote-code",
        action="store_true",
        help="Run the model's own code from the Hub.",
    )
    if subparsers is not None:
        parser.set_defaults(func=estimate_command)
    return parser


def estimate_command(args: argparse.Namespace) -> int:
    """Raises NotBuiltError: the estimate comes with a later version."""
    raise NotBuiltError(
        f"An estimate for {args.model_name!r} was asked for, and the memory estimate is not built yet in this version. "
        "In Python, accelerate.utils.compute_module_sizes(model) adds up a model that is on the meta device."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``accelerate estimate-memory`` on ``argv`` (``sys.argv`` by default) and returns the exit code."""
    return run("estimate-memory", estimate_command_parser(), estimate_command, argv)


if __name__ == "__main__":
    sys.exit(main())
