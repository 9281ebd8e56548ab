"""``accelerate test``: the self-check, started the way the configuration says."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate.cli.base import call, new_parser, words_of

__all__ = ["main", "self_test", "self_test_parser"]

SCRIPT = Path(__file__).resolve().parents[1] / "test_utils" / "scripts" / "self_check.py"
PARTS = ("processes", "collectives", "loading", "training", "saving")


def self_test_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """The parser of ``accelerate test``; with ``subparsers`` it is added there. Further words are launch flags."""
    parser = new_parser(
        "test",
        "Check the installation and the configuration with a short self-check.\nFlags of accelerate launch may follow.",
        subparsers,
    )
    parser.add_argument(
        "--config_file", "--config-file", default=None, metavar="FILE", help="Configuration file to check."
    )
    matrix = parser.add_argument_group("Every strategy", "Compare all that this machine can run with one process.")
    matrix.add_argument("--matrix", action="store_true", help="Train a tiny transformer under every strategy.")
    matrix.add_argument("--only", nargs="+", default=[], metavar="NAME", help="Only these strategies (and single).")
    matrix.add_argument("--json", action="store_true", help="Print JSON instead of the table.")
    if subparsers is not None:
        parser.set_defaults(func=self_test)
    return parser


def self_test(args: argparse.Namespace) -> int:
    """Launches the self-check with the configuration of a parsed command line and returns its exit code.

    Raises:
        AccelerateError: it could not be started.
    """
    from accelerate.errors import ConfigError

    flags = [*getattr(args, "flags", ())]
    if getattr(args, "matrix", False):
        if flags or args.config_file is not None:
            said = " ".join(flags or ["--config_file", args.config_file])
            raise ConfigError(f"--matrix was asked for together with {said}. It sets its own flags: leave them out.")
        return _matrix(args)
    if getattr(args, "only", None) or getattr(args, "json", False):
        raise ConfigError("--only and --json were given without --matrix, which they belong to: add it.")
    words = [] if args.config_file is None else ["--config_file", args.config_file]
    words = [*words, *flags, str(SCRIPT)]
    code = _live(words) if sys.stdout.isatty() else _plain(words)
    if code:
        print("accelerate test: the self-check failed.", file=sys.stderr)
    else:
        print("accelerate test: everything that was checked works.")
    return code


def _plain(words: list[str]) -> int:
    from accelerate.cli.launch import launch_command, launch_command_parser

    try:
        launch_command(launch_command_parser().parse_args(words))
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    return 0


def _live(words: list[str]) -> int:
    """Shows each part in a table as it ends; whatever else the processes say stands above it."""
    import subprocess

    from rich.console import Console
    from rich.live import Live

    console, done = Console(), dict[str, str]()
    # A pipe would be read in blocks: what Python prints there has to come at once.
    command = [sys.executable, "-u", "-m", "accelerate.cli.launch", *words]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child,
        Live(_parts(done, None), console=console, refresh_per_second=8) as live,
    ):
        assert child.stdout is not None
        for line in child.stdout:
            name, _, said = line.rstrip("\n").partition(" ")
            if name in PARTS and name not in done:
                done[name] = said.strip()
                live.update(_parts(done, None))
            else:
                console.print(line.rstrip("\n"), markup=False, highlight=False, soft_wrap=True)
        code = child.wait()
        live.update(_parts(done, code))
    return code


def _parts(done: dict[str, str], code: int | None) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="accelerate test", title_justify="left")
    for column in ("part", "", "what was found"):
        table.add_column(column)
    for name in PARTS:
        first = name not in done and all(other in done for other in PARTS[: PARTS.index(name)])
        running = "[yellow]running[/yellow]" if code is None else "[bold red]failed[/bold red]"
        state = "[green]ok[/green]" if name in done else running if first else "[dim]waiting[/dim]"
        table.add_row(name, state, escape(done.get(name, "")))
    return table


def _matrix(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.live import Live

    from accelerate import env
    from accelerate.cli.test_matrix import chosen, run_matrix, table
    from accelerate.launch.hardware import detect

    console = Console(stderr=args.json)
    rows = []
    with Live(console=console, refresh_per_second=4) as live:
        for rows in run_matrix(chosen(args.only), detect(env.snapshot()).count):
            live.update(table(rows))
    bad = [row for row in rows if row.state == "failed"]
    for row in bad:
        console.print(f"{row.case.name}: {row.why}", markup=False, highlight=False, soft_wrap=True)
    if args.json:
        print(json.dumps([row.as_dict() for row in rows], indent=2))
    ran = [row for row in rows if row.state in ("ok", "failed")]
    verdict = f"{len(bad)} of {len(ran)} failed" if bad else f"all {len(ran)} agree with one process"
    print(f"accelerate test: {verdict}.", file=sys.stderr if bad or args.json else sys.stdout)
    return 1 if bad else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``accelerate test`` on ``argv`` (``sys.argv`` by default) and returns the exit code."""
    args, flags = self_test_parser().parse_known_args(words_of(argv))
    args.flags = flags
    return call("test", self_test, args)


if __name__ == "__main__":
    sys.exit(main())
