"""``accelerate tpu-config``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from accelerate.cli.base import new_parser, run
from accelerate.errors import NotBuiltError

__all__ = ["main", "tpu_command_launcher", "tpu_command_parser"]


def tpu_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """The parser of ``accelerate tpu-config``; with ``subparsers`` it is added there."""
    parser = new_parser("tpu-config", "Run commands on all machines of a TPU pod.", subparsers)
    where = parser.add_argument_group("Pod")
    where.add_argument("--config_file", default=None, metavar="FILE", help="Configuration file with what is not given.")
    where.add_argument("--tpu_name", default=None, metavar="NAME", help="Name of the TPU.")
    where.add_argument("--tpu_zone", default=None, metavar="ZONE", help="Zone of the TPU.")
    where.add_argument("--use_alpha", action="store_true", help="Use `gcloud alpha`.")
    what = parser.add_argument_group("Commands")
    what.add_argument("--command_file", default=None, metavar="FILE", help="File of commands to run.")
    what.add_argument(
        "--command", action="append", nargs="+", default=None, help="A command to run; give the flag once for each."
    )
    what.add_argument("--install_accelerate", action="store_true", help="Install accelerate there first.")
    what.add_argument("--accelerate_version", default="latest", metavar="VERSION", help="Which version to install.")
    what.add_argument("--debug", action="store_true", help="Show the command instead of running it.")
    if subparsers is not None:
        parser.set_defaults(func=tpu_command_launcher)
    return parser


def tpu_command_launcher(args: argparse.Namespace) -> int:
    """Raises NotBuiltError: TPU pods come with a later version."""
    name = f" {args.tpu_name!r}" if args.tpu_name else ""
    raise NotBuiltError(
        f"Commands on the TPU pod{name} were asked for, which are not built yet in this version. "
        "`gcloud compute tpus tpu-vm ssh NAME --zone ZONE --worker all --command …` runs them."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``accelerate tpu-config`` on ``argv`` (``sys.argv`` by default) and returns the exit code."""
    return run("tpu-config", tpu_command_parser(), tpu_command_launcher, argv)


if __name__ == "__main__":
    sys.exit(main())
