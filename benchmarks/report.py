"""What was measured, as a table and as JSON."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.cases import Row
from benchmarks.measure import Interpreter

__all__ = ["table", "write"]


def table(rows: list[Row], console: Console) -> None:
    """Prints a line for each row; medians, and in brackets the cost by the smallest values."""
    shown = Table(title="medians; in brackets the cost by best times")
    for name in ("case", "what", "implementation"):
        shown.add_column(name, no_wrap=name != "what")
    for name in ("baseline ms", "subject ms", "cost", "limit", "holds"):
        shown.add_column(name, justify="right")
    for row in rows:
        mark = "×" if row.unit == "x" else " ms"
        digits = 3 if row.unit == "x" else 0
        shown.add_row(
            row.case,
            row.what,
            row.implementation,
            f"{row.baseline * 1000:,.2f}",
            f"{row.subject * 1000:,.2f}",
            f"{row.cost:.{digits}f}{mark} [dim]({row.best:.{digits}f})[/dim]",
            f"{row.limit:g}{mark}",
            "[green]yes[/green]" if row.holds else "[red]no[/red]",
        )
    console.print(shown)


def write(rows: list[Row], interpreters: list[Interpreter], path: Path) -> None:
    """Writes the rows with what is needed to read them later: machine and interpreters."""
    path.write_text(
        json.dumps(
            {
                "machine": {"system": platform.platform(), "processor": platform.processor() or platform.machine()},
                "interpreters": [who.name for who in interpreters],
                "rows": [{**asdict(row), "holds": row.holds} for row in rows],
            },
            indent=1,
        )
        + "\n"
    )
