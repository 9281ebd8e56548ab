"""``accelerate env``: what a bug report needs to say."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate._version import __version__
from accelerate.cli.base import new_parser, run

__all__ = ["collect", "env_command", "env_command_parser", "main"]

# Distributions whose version tells something about a run. Those that are not installed are left out.
_PACKAGES = (
    "torch",
    "numpy",
    "safetensors",
    "transformers",
    "diffusers",
    "datasets",
    "peft",
    "trl",
    "deepspeed",
    "megatron-core",
    "torchao",
    "transformer-engine",
    "bitsandbytes",
    "torchdata",
    "torch-xla",
)


def env_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """The parser of ``accelerate env``; with ``subparsers`` it is added there."""
    parser = new_parser("env", "Show versions, devices and the configuration, as for a bug report.", subparsers)
    parser.add_argument(
        "--config_file", "--config-file", default=None, metavar="FILE", help="Configuration file to show."
    )
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    if subparsers is not None:
        parser.set_defaults(func=env_command)
    return parser


def collect(config_file: str | None = None) -> dict[str, Any]:
    """What there is to say about this machine, this Python and the configuration, as plain values.

    Raises:
        ConfigError: ``config_file`` does not exist or holds something else.
    """
    return {
        "accelerate": {"version": __version__, "location": str(Path(__file__).resolve().parents[1])},
        "machine": _machine(),
        "packages": _packages(),
        "torch": _torch(),
        "variables": _variables(),
        "configuration": _configuration(config_file),
    }


def _machine() -> dict[str, Any]:
    from accelerate.devices import get
    from accelerate.launch.hardware import physical_cores

    memory = get("cpu").memory
    return {
        "platform": platform.platform(),
        "python": f"{platform.python_version()} ({sys.executable})",
        "cores": f"{physical_cores()} physical, {os.cpu_count()} logical",
        "memory": f"{memory.total() / 2**30:.1f} GiB, {memory.available() / 2**30:.1f} GiB free",
    }


def _packages() -> dict[str, str]:
    from accelerate.optional import installed_version

    versions = {name: installed_version(name) for name in _PACKAGES}
    return {name: version for name, version in versions.items() if version is not None}


def _torch() -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    from accelerate.devices import kinds

    found: dict[str, Any] = {"built with": f"CUDA {torch.version.cuda or 'no'}, ROCm {torch.version.hip or 'no'}"}
    for backend in kinds():
        if backend.type != "cpu" and backend.is_available():
            found[backend.type] = f"{backend.count()} device(s){_names(torch, backend.type, backend.count())}"
    if len(found) == 1:
        found["devices"] = "CPU only"
    if dist.is_available():
        found["backends"] = ", ".join(
            name for name in ("gloo", "nccl", "mpi", "ucc", "xccl") if dist.is_backend_available(name)
        )
    return found


def _names(torch: Any, kind: str, count: int) -> str:
    module = getattr(torch, kind, None)
    if module is None or not hasattr(module, "get_device_name"):
        return ""
    return ": " + ", ".join(sorted({str(module.get_device_name(index)) for index in range(count)}))


def _variables() -> dict[str, str]:
    from accelerate import env

    prefixes = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "NCCL_", "GLOO_", "TORCH_", "TORCHELASTIC_", "OMP_")
    named = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "HF_HOME")
    return {name: value for name, value in sorted(env.snapshot().items()) if name.startswith(prefixes) or name in named}


def _configuration(config_file: str | None) -> dict[str, Any]:
    from accelerate.config.files import default_config_path, find_config_file, read_raw

    path = find_config_file(config_file)
    if path is None:
        return {"file": f"none at {default_config_path()}"}
    return {"file": str(path), **read_raw(path)}


def env_command(args: argparse.Namespace) -> dict[str, Any]:
    """Prints the account of a parsed command line, and returns it.

    Raises:
        ConfigError: the configuration file does not exist or holds something else.
    """
    found = collect(args.config_file)
    if getattr(args, "json", False):
        print(json.dumps(found, indent=2, default=str))
    else:
        _draw(found)
    return found


def _draw(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for title, rows in found.items():
        table.add_row(Text(title, style="bold cyan"), "")
        for name, value in rows.items():
            table.add_row(Text(f"  {name}"), Text(_text(value)))
        if not rows:
            table.add_row("  none", "")
    console.print(table)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{name}: {inner}" for name, inner in value.items()) or "-"
    return str(value)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``accelerate env`` on ``argv`` (``sys.argv`` by default) and returns the exit code."""
    return run("env", env_command_parser(), env_command, argv)


if __name__ == "__main__":
    sys.exit(main())
