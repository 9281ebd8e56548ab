"""``accelerate plan``: how a model can be trained on the devices there are, with the arithmetic."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from accelerate.cli.base import new_parser, run
from accelerate.cli.estimate import model_arguments, shape_of, whole
from accelerate.cli.estimate_sizes import Workload, readable
from accelerate.cli.plan_choice import Choice, Machine, arithmetic, best, considered, read_bytes
from accelerate.errors import ConfigError

__all__ = ["machine_of", "main", "plan_command", "plan_command_parser"]


def plan_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """The parser of ``accelerate plan``; with ``subparsers`` it is added there."""
    parser = new_parser("plan", "Show how a model can be trained on these devices, and what that takes.", subparsers)
    model_arguments(parser)
    group = parser.add_argument_group("The devices", "By default those of this machine.")
    group.add_argument("--devices", type=whole, default=None, metavar="N", help="How many.")
    group.add_argument("--memory", default=None, metavar="SIZE", help="Memory of each, for example 24GiB.")
    group = parser.add_argument_group("The training")
    group.add_argument("--batch", type=whole, default=8, metavar="N", help="Items a device and step. Default: 8.")
    group.add_argument("--seq", type=whole, default=512, metavar="N", help="Tokens an item. Default: 512.")
    group.add_argument(
        "--dtype", default="float32", choices=["float32", "bfloat16", "float16"], help="Format of the weights."
    )
    parser.add_argument("--json", action="store_true", help="Print JSON, in bytes.")
    if subparsers is not None:
        parser.set_defaults(func=plan_command)
    return parser


def machine_of(devices: int | None, memory: str | None) -> Machine:
    """The devices of this machine, or as many as said with as much memory as said. On the CPU, processes share the
    main memory.

    Raises:
        ConfigError: ``memory`` is no size.
    """
    from accelerate import env
    from accelerate.launch.hardware import detect

    found = detect(env.snapshot())
    many = devices or found.count or 1
    if memory is not None:
        return Machine(devices=many, memory=read_bytes(memory), kind=found.type)
    from accelerate.devices import get

    held = get(found.type).memory.total(0)
    return Machine(devices=many, memory=held // (many if found.type == "cpu" else 1), kind=found.type)


def plan_command(args: argparse.Namespace) -> int:
    """Prints what fits for a parsed command line; 1 where nothing does.

    Raises:
        ConfigError: there is no such model, or the memory is no size.
    """
    machine = machine_of(args.devices, args.memory)
    shape = shape_of(args)
    if not shape.trainable:
        raise ConfigError(f"{args.model_name!r} has no parameter that is trained. There is nothing to plan.")
    work = Workload(batch=args.batch, seq=args.seq)
    every = list(considered(shape, machine, work, args.dtype))
    choice = best(every)
    command = ["accelerate", "launch", "--num_processes", str(machine.devices), *choice.flags]
    command += ["--gradient_accumulation_steps", str(choice.accumulation), "train.py"]
    lines = arithmetic(shape, choice, machine, args.dtype)
    if args.json:
        found = {
            "model": args.model_name,
            "machine": {"devices": machine.devices, "memory": machine.memory, "usable": machine.usable},
            "choice": _plain(choice),
            "considered": [_plain(one) for one in every],
            "arithmetic": lines,
            "command": command,
        }
        print(json.dumps(found, indent=2))
    else:
        _show(args.model_name, machine, every, choice)
        print("\n".join(["", *(f"  {line}" for line in lines), "", *_advice(choice, command)]))
    return 0 if choice.fits else 1


def _plain(choice: Choice) -> dict[str, Any]:
    names = ("way", "flags", "recompute", "micro_batch", "accumulation", "fits")
    return {**{name: getattr(choice, name) for name in names}, "cost": choice.cost.as_dict()}


def _advice(choice: Choice, command: list[str]) -> list[str]:
    if not choice.fits:
        return ["Nothing fits. More devices, a shorter --seq, or weights in --dtype bfloat16 take less."]
    lines = [shlex.join(command), f"Batches of {choice.micro_batch} from the loader of each process."]
    if choice.recompute and not choice.flags:
        lines.append("In the script: model.gradient_checkpointing_enable(), or torch.utils.checkpoint.")
    return lines


def _show(name: str, machine: Machine, every: list[Choice], choice: Choice) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    what = f"{machine.devices} x {machine.kind} with {readable(machine.memory)}"
    console.print(f"[bold]{escape(name)}[/bold] on {what}", highlight=False, soft_wrap=True)
    table = Table()
    for column in ("way", "computed again", "micro-batch", "a device", ""):
        table.add_column(column, justify="right" if column in ("micro-batch", "a device") else "left")
    for one in every:
        word = "[green]chosen[/green]" if one == choice and one.fits else "fits" if one.fits else "[red]too large[/red]"
        again = "yes" if one.recompute else "no"
        table.add_row(one.way, again, f"{one.micro_batch} x {one.accumulation}", readable(one.cost.total), word)
    console.print(table)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``accelerate plan`` on ``argv`` (``sys.argv`` by default) and returns the exit code."""
    return run("plan", plan_command_parser(), plan_command, argv)


if __name__ == "__main__":
    sys.exit(main())
