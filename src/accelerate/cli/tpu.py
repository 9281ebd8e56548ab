"""``accelerate tpu-config``."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from accelerate.cli.base import new_parser, run
from accelerate.config.files import find_config_file
from accelerate.config.resolve import resolve
from accelerate.config.sections.tpu import TpuSection
from accelerate.errors import ConfigError, LaunchError
from accelerate.launch.gcloud import ssh_command

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


def _commands(args: argparse.Namespace, config: TpuSection) -> list[str]:
    """What is to be run: the command line's before the file's; --install_accelerate comes first."""
    found = [shlex.join(words) if len(words) > 1 else words[0] for words in args.command or ()]
    file = args.command_file or (None if found else config.command_file)
    if file:
        try:
            with open(file, encoding="utf-8") as lines:
                found = [line for line in map(str.strip, lines) if line and not line.startswith("#")] + found
        except OSError as error:
            raise ConfigError(f"The commands in {file!r} were asked for, which cannot be read: {error}.") from error
    found = found or list(config.commands or ())
    if args.install_accelerate:
        wanted = "accelerate" if args.accelerate_version == "latest" else f"accelerate=={args.accelerate_version}"
        found.insert(0, f"pip install --upgrade {shlex.quote(wanted)}")
    return found


def tpu_command_launcher(args: argparse.Namespace) -> int:
    """Runs commands on each machine of a pod and returns gcloud's exit code; with ``--debug`` only shows its command.

    Raises:
        ConfigError: the file of commands cannot be read.
        LaunchError: name, zone or commands are missing, or there is no gcloud.
    """
    config = resolve(None, {}, find_config_file(args.config_file)).config.tpu_settings
    command = ssh_command(
        args.tpu_name or config.name, args.tpu_zone or config.zone, _commands(args, config), alpha=args.use_alpha
    )
    if args.debug:
        print(shlex.join(command))
        return 0
    program = shutil.which(command[0])
    if program is None:
        raise LaunchError(
            f"There is no gcloud on the PATH. Install Google's command line, or run elsewhere: {shlex.join(command)}"
        )
    return subprocess.run([program, *command[1:]], check=False).returncode


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``accelerate tpu-config`` on ``argv`` (``sys.argv`` by default) and returns the exit code."""
    return run("tpu-config", tpu_command_parser(), tpu_command_launcher, argv)


if __name__ == "__main__":
    sys.exit(main())
