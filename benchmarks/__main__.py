"""Command line of the benchmarks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

import benchmarks
from benchmarks import report
from benchmarks.cases import CASES, Row
from benchmarks.measure import Interpreter

OWN = "this"


def interpreter(text: str) -> Interpreter:
    """``NAME=PYTHON``."""
    name, equals, python = text.partition("=")
    if not (name and equals and Path(python).is_file()) or name == OWN:
        raise argparse.ArgumentTypeError(f"{text!r}: give NAME=PYTHON, a name other than {OWN!r} and an existing file")
    return Interpreter(name=name, python=str(Path(python).absolute()))


def parser() -> argparse.ArgumentParser:
    """The parser of ``python -m benchmarks``."""
    made = argparse.ArgumentParser(
        prog="benchmarks", description=benchmarks.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("names", nargs="*", metavar="CASE", help=", ".join(CASES))
    made.add_argument("--against", action="append", type=interpreter, default=[], metavar="NAME=PYTHON")
    made.add_argument("--repeats", type=int, help="runs of each command (by default each case's own number)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    made.add_argument("--strict", action="store_true", help="exit with 1 where this implementation misses a limit")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints, and returns the exit code."""
    arguments = parser().parse_args(argv)
    if unknown := [name for name in arguments.names if name not in CASES]:
        parser().error(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    interpreters = [Interpreter(name=OWN, python=sys.executable, own=True), *arguments.against]
    console = Console(width=None if sys.stdout.isatty() else 160)
    rows: list[Row] = []
    for name in arguments.names or CASES:
        case = CASES[name]
        with console.status(f"{name}: {case.about}"):
            rows += case.measure(name, interpreters, arguments.repeats or case.repeats)
    report.table(rows, console)
    if arguments.json:
        report.write(rows, interpreters, arguments.json)
    missed = [row for row in rows if row.implementation == OWN and not row.holds]
    return 1 if arguments.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
