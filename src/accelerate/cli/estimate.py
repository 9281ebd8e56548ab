"""``accelerate estimate-memory``: what a model takes, by number format and by strategy, before it is loaded."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from accelerate.cli.base import new_parser, run
from accelerate.cli.estimate_model import create_empty_model, shape_of_model
from accelerate.cli.estimate_sizes import BYTES, STRATEGIES, Cost, Shape, Workload, inference, readable, training

__all__ = [
    "create_empty_model",
    "estimate_command",
    "estimate_command_parser",
    "gather_data",
    "main",
    "model_arguments",
    "report",
    "shape_of",
    "whole",
    "work_arguments",
]

DTYPES = ["float32", "float16", "int8", "int4"]
MODEL = "A name on the Hub, a folder, a config.json, package.module:Class, or file.py:function."


def model_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that say which model is meant."""
    group = parser.add_argument_group("The model")
    group.add_argument("model_name", metavar="MODEL", help=MODEL)
    group.add_argument(
        "--library_name",
        "--library-name",
        default=None,
        choices=["timm", "transformers"],
        help="The library that the model belongs to, where the Hub does not say.",
    )
    group.add_argument(
        "--trust_remote_code",
        "--trust-remote-code",
        action="store_true",
        help="Run the model's own code from the Hub.",
    )


def work_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that say how it is trained."""
    group = parser.add_argument_group("The training")
    group.add_argument("--batch", type=whole, default=1, metavar="N", help="Items a device and step. Default: 1.")
    group.add_argument("--seq", type=whole, default=512, metavar="N", help="Tokens an item. Default: 512.")


def whole(text: str) -> int:
    """The number of a flag that counts something, for argparse."""
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def estimate_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """The parser of ``accelerate estimate-memory``; with ``subparsers`` it is added there."""
    parser = new_parser("estimate-memory", "Show how much memory a model takes, before it is loaded.", subparsers)
    model_arguments(parser)
    work_arguments(parser)
    parser.add_argument(
        "--checkpointing", action="store_true", help="Activations are computed again in the backward pass."
    )
    group = parser.add_argument_group("What to show")
    group.add_argument(
        "--dtypes",
        nargs="+",
        default=DTYPES,
        choices=DTYPES,
        metavar="NAME",
        help=f"Number formats to show: {', '.join(DTYPES)}.",
    )
    group.add_argument(
        "--devices", nargs="+", type=whole, default=[1, 8], metavar="N", help="Numbers of devices. Default: 1 8."
    )
    group.add_argument(
        "--strategies",
        nargs="+",
        default=list(STRATEGIES),
        choices=list(STRATEGIES),
        metavar="NAME",
        help=f"Strategies to show: {', '.join(STRATEGIES)}.",
    )
    group.add_argument("--json", action="store_true", help="Print JSON, in bytes.")
    if subparsers is not None:
        parser.set_defaults(func=estimate_command)
    return parser


def gather_data(args: argparse.Namespace) -> list[list[Any]]:
    """A row for each of ``args.dtypes``: its name, bytes of the largest layer, of the whole model, and, as a dictionary
    by number format, of training with Adam on one device (None for formats that are not trained in).

    Raises:
        ConfigError: there is no such model.
    """
    shape = shape_of(args)
    rows = []
    for dtype in args.dtypes:
        states = training(shape, Workload(), dtype, ["DDP"])[0].states if BYTES[dtype] >= 2 else None
        rows.append([dtype, int(shape.largest * BYTES[dtype]), inference(shape, dtype), {dtype: states}])
    return rows


def shape_of(args: argparse.Namespace) -> Shape:
    """The shape of the model that :func:`model_arguments` say.

    Raises:
        ConfigError: there is no such model.
    """
    return shape_of_model(create_empty_model(args.model_name, args.library_name, args.trust_remote_code))


def report(shape: Shape, args: argparse.Namespace) -> dict[str, Any]:
    """All that the command shows, in bytes and elements."""
    trained: dict[str, list[Cost]] = {}
    for dtype in (name for name in args.dtypes if BYTES[name] >= 2):
        trained[dtype] = []
        for devices in args.devices:
            work = Workload(devices=devices, batch=args.batch, seq=args.seq, recompute=args.checkpointing)
            # On one device there is nothing to divide: one row stands for all.
            names = args.strategies if devices > 1 else args.strategies[:1]
            trained[dtype] += training(shape, work, dtype, names)
    return {
        "model": args.model_name,
        "parameters": shape.parameters,
        "trainable": shape.trainable,
        "buffers": shape.buffers,
        "tied": list(shape.tied),
        "largest_layer": {"name": shape.largest_name, "parameters": shape.largest},
        "inference": {
            dtype: {"largest_layer": int(shape.largest * BYTES[dtype]), "total": inference(shape, dtype)}
            for dtype in args.dtypes
        },
        "training": {dtype: [cost.as_dict() for cost in costs] for dtype, costs in trained.items()},
        "batch": args.batch,
        "seq": args.seq,
        "checkpointing": args.checkpointing,
    }


def estimate_command(args: argparse.Namespace) -> int:
    """Prints the tables, or JSON, for a parsed command line.

    Raises:
        ConfigError: there is no such model.
        MissingPackageError: its library is not installed.
    """
    found = report(shape_of(args), args)
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        _show(found)
    return 0


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    tied = f", tied ones once ({', '.join(found['tied'])})" if found["tied"] else ""
    layer = found["largest_layer"]
    console.print(f"[bold]{escape(found['model'])}[/bold]", soft_wrap=True)
    console.print(f"{found['parameters']:,} parameters{escape(tied)}", highlight=False)
    console.print(f"Largest layer: {escape(layer['name'])}, {layer['parameters']:,} parameters", highlight=False)
    table = Table(title="Inference", title_justify="left")
    for name in ("numbers", "largest layer", "weights"):
        table.add_column(name, justify="left" if name == "numbers" else "right")
    for dtype, sizes in found["inference"].items():
        table.add_row(dtype, readable(sizes["largest_layer"]), readable(sizes["total"]))
    console.print(table)
    again = ", computed again in the backward pass" if found["checkpointing"] else ""
    for dtype, rows in found["training"].items():
        title = f"Training with Adam, {dtype} weights; bytes a device ({found['batch']} x {found['seq']} tokens{again})"
        table = Table(title=title, title_justify="left", padding=(0, 0), pad_edge=False)
        for name in ("strategy", "n", "weights", "grads", "Adam", "buffers", "activ.", "sum"):
            table.add_column(name, justify="left" if name == "strategy" else "right", no_wrap=True)
        for row in rows:
            extra = row["gathered"] + row["bucket"]
            name = row["strategy"] if row["devices"] > 1 else "one device"
            sizes = (row["parameters"], row["gradients"], row["optimizer"], extra, row["activations"], row["total"])
            table.add_row(name, str(row["devices"]), *map(_short, sizes))
        console.print(table)
    console.print(
        "Activations: s·b·h·34 bytes a layer in 16 bit (arXiv 2205.05198, eq. 1, fused attention); the logits and what "
        "the framework itself takes come on top.",
        style="dim",
    )


def _short(size: float | None) -> str:
    return readable(size).replace("iB", "")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``accelerate estimate-memory`` on ``argv`` (``sys.argv`` by default) and returns the exit code."""
    return run("estimate-memory", estimate_command_parser(), estimate_command, argv)


if __name__ == "__main__":
    sys.exit(main())
