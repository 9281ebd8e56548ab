"""``accelerate test --matrix``: one tiny model trained under every strategy that this machine can run.

Each row goes through the real launch path in processes of its own; its losses are compared with those of one process.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accelerate.errors import ConfigError

__all__ = ["CASES", "Case", "Row", "chosen", "difference", "run_matrix", "table"]

SCRIPT = Path(__file__).resolve().parents[1] / "test_utils" / "scripts" / "matrix_case.py"
EXACT, ROUNDED = 1e-5, 0.05  # largest difference of a loss from one process: in float32, and in bf16
SECONDS = 300  # after which a row counts as hanging

_WRAP = ("--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "--fsdp_transformer_layer_cls_to_wrap", "Block")
_FSDP1 = ("--use_fsdp", "--fsdp_version", "1", *_WRAP, "--fsdp_sharding_strategy")
_FSDP2 = ("--use_fsdp", "--fsdp_version", "2", *_WRAP, "--fsdp_reshard_after_forward")
_HYBRID = ("--parallelism_config_dp_replicate_size", "2", "--parallelism_config_dp_shard_size", "2")
_ZERO = ("--use_deepspeed", "--zero_stage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A strategy: its name, the launch flags that ask for it, and on how many processes. ``parts`` counts the
    micro-batches of a step, ``needs`` names the package it stands on."""

    name: str
    flags: tuple[str, ...] = ()
    processes: int = 2
    parts: int = 1
    tolerance: float = EXACT
    needs: str | None = None


CASES: tuple[Case, ...] = (
    Case(name="single", processes=1),
    Case(name="ddp"),
    Case(name="ddp-accumulation", parts=2),
    Case(name="fsdp1-full-shard", flags=(*_FSDP1, "FULL_SHARD")),
    Case(name="fsdp1-shard-grad-op", flags=(*_FSDP1, "SHARD_GRAD_OP")),
    Case(name="fsdp1-no-shard", flags=(*_FSDP1, "NO_SHARD")),
    Case(name="fsdp2", flags=(*_FSDP2, "true")),
    Case(name="fsdp2-no-reshard", flags=(*_FSDP2, "false")),
    Case(name="hsdp", flags=(*_FSDP2, "true", *_HYBRID), processes=4),
    *(Case(name=f"deepspeed-{stage}", flags=(*_ZERO, str(stage)), needs="deepspeed") for stage in range(4)),
    Case(name="ddp-bf16", flags=("--mixed_precision", "bf16"), tolerance=ROUNDED),
    Case(name="fsdp2-bf16", flags=(*_FSDP2, "true", "--mixed_precision", "bf16"), tolerance=ROUNDED),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What became of a case: ``waiting``, ``running``, ``ok``, ``failed`` or ``absent``, and ``why``. ``peak`` is the
    most bytes that one process held, ``seconds`` the training alone, ``whole`` with the start of the processes."""

    case: Case
    state: str = "waiting"
    why: str = ""
    losses: tuple[float, ...] = ()
    apart: float | None = None
    seconds: float = 0.0
    whole: float = 0.0
    peak: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The row as plain values."""
        named = {name: getattr(self, name) for name in ("state", "why", "losses", "apart", "seconds", "whole", "peak")}
        return {
            "strategy": self.case.name,
            "processes": self.case.processes,
            "tolerance": self.case.tolerance,
            "flags": list(self.case.flags),
            **named,
        }


def chosen(names: Iterable[str]) -> list[Case]:
    """The cases of these names (none: all), the single process always first.

    Raises:
        ConfigError: there is no such case.
    """
    known = {case.name: case for case in CASES}
    wanted = list(names) or list(known)
    for name in wanted:
        if name not in known:
            raise ConfigError(f"--only {name}: there is no such strategy. Strategies are {', '.join(known)}.")
    return [known["single"], *(case for name, case in known.items() if name in wanted and name != "single")]


def difference(found: Sequence[float], wanted: Sequence[float]) -> float:
    """The largest difference of two rows of losses; infinite where they differ in length or are no numbers."""
    if len(found) != len(wanted) or not found:
        return math.inf
    apart = [abs(one - other) for one, other in zip(found, wanted, strict=True)]
    return max(apart) if all(map(math.isfinite, apart)) else math.inf


def run_matrix(cases: Sequence[Case], devices: int = 0) -> Iterator[list[Row]]:
    """Runs the cases one after another and gives all rows each time one of them changed.

    ``devices`` is how many accelerators the machine has; a case with more processes trains on the CPU.
    """
    from accelerate.optional import available

    rows = [Row(case=case) for case in cases]
    reference: tuple[float, ...] = ()
    for at, case in enumerate(cases):
        if case.needs and not available(case.needs):
            rows[at] = replace(rows[at], state="absent", why=f"{case.needs} is not installed")
            yield list(rows)
            continue
        rows[at] = replace(rows[at], state="running")
        yield list(rows)
        # All on the same kind of device, since the losses are compared.
        row = _run(case, on_cpu=devices < max(other.processes for other in cases))
        if case.name == "single":
            reference = row.losses
        rows[at] = _judged(row, reference)
        yield list(rows)


def _judged(row: Row, reference: Sequence[float]) -> Row:
    if row.state == "failed":
        return row
    apart = difference(row.losses, reference)
    if apart <= row.case.tolerance:
        return replace(row, state="ok", apart=apart)
    return replace(row, state="failed", apart=apart, why=f"a loss is {apart:.3g} from that of one process")


def _run(case: Case, on_cpu: bool) -> Row:
    import time

    from accelerate import env

    values = {name: value for name, value in env.snapshot().items() if not name.startswith(("ACCELERATE_", "FSDP_"))}
    values.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        report, empty = Path(folder, "report.json"), Path(folder, "config.yaml")
        empty.write_text("compute_environment: LOCAL_MACHINE\n", encoding="utf-8")  # so that no default file is read
        words = [sys.executable, "-m", "accelerate.cli.launch", "--config_file", str(empty)]
        words += ["--num_processes", str(case.processes), *(["--cpu"] if on_cpu else []), *case.flags]
        words += [str(SCRIPT), "--report", str(report), "--parts", str(case.parts)]
        start = time.perf_counter()
        try:
            ended = subprocess.run(words, env=values, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return Row(case=case, state="failed", why=f"did not end within {SECONDS} s")
        whole = time.perf_counter() - start
        if ended.returncode or not report.exists():
            said = [line for line in ended.stderr.splitlines() if line.strip()]
            why = "\n".join(said[-15:]) or f"exit code {ended.returncode}, and nothing was said"
            return Row(case=case, state="failed", why=why, whole=whole)
        found = json.loads(report.read_text(encoding="utf-8"))
    return Row(
        case=case,
        losses=tuple(found["losses"]),
        seconds=found["seconds"],
        peak=found["peak"],
        whole=whole,
    )


def table(rows: Sequence[Row]) -> Any:
    """The rows as a table of rich."""
    from rich.table import Table

    shown = Table(title="A tiny transformer: largest difference of a loss from one process", title_justify="left")
    for name in ("strategy", "ranks", "difference", "train", "in all", "peak", ""):
        shown.add_column(name, justify="left" if name in ("strategy", "") else "right", no_wrap=True)
    colours = {"ok": "green", "failed": "bold red", "running": "yellow"}
    before = rows[0].case.tolerance if rows else EXACT
    for row in rows:
        if row.case.tolerance != before:
            shown.add_section()
            before = row.case.tolerance
        done = row.state == "ok" or row.apart is not None
        values = (
            f"{row.apart:.1e}" if row.apart is not None else "",
            f"{row.seconds:.2f} s" if done else "",
            f"{row.whole:.1f} s" if row.whole else "",
            f"{row.peak / 2**20:.0f} MiB" if done else "",
        )
        colour = colours.get(row.state, "dim")
        state = f"[{colour}]{row.state}[/{colour}]"
        shown.add_row(row.case.name, str(row.case.processes), *values, state)
    return shown
