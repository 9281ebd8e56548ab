"""Every setting of a launch, where it came from, what it overrides, and what would be started."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from accelerate import env
from accelerate.config.resolve import Resolved
from accelerate.env import encode
from accelerate.errors import AccelerateError

__all__ = ["as_data", "as_text"]


def _deepspeed(resolved: Resolved) -> dict[str, Any] | None:
    if not resolved.config.use_deepspeed:
        return None
    from accelerate.config.deepspeed import DeepSpeedPlugin

    with env.patch_environment(**resolved.environment()):
        return DeepSpeedPlugin().deepspeed_config


def _plan(args: Any) -> str:
    """What would be started, or why nothing would."""
    from accelerate.cli.launch import job_of, plan_of

    try:
        plan = plan_of(job_of(args)[0])
    except AccelerateError as error:
        return f"Cannot be started: {error}"
    return "\n".join([plan.description, *(f"notice: {text}" for text in plan.notices)])


def as_data(resolved: Resolved, args: Any | None = None) -> dict[str, Any]:
    """The explanation as plain values."""
    found: dict[str, Any] = {
        "settings": {
            path: {
                "value": encode(source.value),
                "from": source.where,
                "overrides": [{"value": encode(other.value), "from": other.where} for other in source.overrides],
            }
            for path, source in resolved.explain()
        },
        "environment": resolved.environment(),
        "notices": list(resolved.notices),
    }
    deepspeed = _deepspeed(resolved)
    if deepspeed is not None:
        found["deepspeed"] = deepspeed
    if args is not None:
        found["plan"] = _plan(args)
    return found


def _table(rows: Sequence[tuple[str, ...]], heads: tuple[str, ...]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    for row in [heads, *rows]:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def as_text(resolved: Resolved, args: Any | None = None) -> str:
    """The explanation for a terminal."""
    rows = [
        (path, encode(source.value), source.where, ", ".join(str(other) for other in source.overrides))
        for path, source in resolved.explain()
    ]
    lines = [f"! {text}" for text in resolved.notices]
    if rows:
        lines += _table(rows, ("setting", "value", "from", "goes before"))
    else:
        lines.append("Nothing is set: every setting has its default.")
    variables = resolved.environment()
    if variables:
        lines += ["", "Processes see:", *(f"  {name}={value}" for name, value in variables.items())]
    deepspeed = _deepspeed(resolved)
    if deepspeed is not None:
        lines += ["", "DeepSpeed's configuration:", json.dumps(deepspeed, indent=2)]
    if args is not None:
        lines += ["", "Would be started:", *(f"  {line}" for line in _plan(args).splitlines())]
    return "\n".join(lines)
