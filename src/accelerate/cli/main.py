"""``accelerate``: finds the command and hands it the rest of the line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

__all__ = ["COMMANDS", "help_text", "main", "report_error"]

# Group → command → (module, what it does). Written out, so that the help needs none of the modules.
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Run": {
        "launch": ("accelerate.cli.launch", "Start a training script on any number of processes and machines."),
        "test": ("accelerate.cli.test", "Check the installation and the configuration with a short self-check."),
    },
    "Set up": {
        "config": ("accelerate.cli.config", "Answer questions and write a configuration file; show, check, change it."),
        "migrate": ("accelerate.cli.migrate", "Rewrite configuration files of older releases in today's form."),
        "env": ("accelerate.cli.env", "Show versions, devices and the configuration, as for a bug report."),
        "completion": ("accelerate.cli.completion", "Print what a shell needs to complete commands and flags."),
    },
    "Models and checkpoints": {
        "estimate-memory": ("accelerate.cli.estimate", "Show how much memory a model takes, to run and to train."),
        "plan": ("accelerate.cli.plan", "Show which way of training a model fits the devices, and why."),
        "merge-weights": ("accelerate.cli.merge", "Turn a checkpoint of FSDP or DeepSpeed into one set of weights."),
        "to-fsdp2": ("accelerate.cli.to_fsdp2", "Rewrite a configuration file for FSDP1 into one for FSDP2."),
    },
    "Clusters": {
        "tpu-config": ("accelerate.cli.tpu", "Run commands on all machines of a TPU pod."),
    },
}


def _modules() -> dict[str, str]:
    return {name: module for group in COMMANDS.values() for name, (module, _) in group.items()}


def help_text() -> str:
    """The overview of all commands, by subject, for a terminal of 80 columns."""
    width = max(len(name) for group in COMMANDS.values() for name in group)
    lines = ["usage: accelerate <command> [options]", ""]
    for title, group in COMMANDS.items():
        lines.append(f"{title}:")
        for name, (_, about) in group.items():
            lines += _wrapped(f"  {name:<{width}}  ", about)
        lines.append("")
    lines.append("Options:")
    lines += _wrapped(
        f"  {'-h, --help':<{width}}  ", "Show this help. `accelerate <command> --help` explains a command."
    )
    lines += _wrapped(f"  {'--version':<{width}}  ", "Show the version.")
    return "\n".join(lines)


def _wrapped(head: str, text: str, columns: int = 80) -> list[str]:
    lines, line = [], head
    for word in text.split():
        if len(line) + len(word) > columns and line.strip():
            lines.append(line.rstrip())
            line = " " * len(head)
        line += word + " "
    return [*lines, line.rstrip()]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (``sys.argv`` by default) and returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(help_text())
        return 0 if words else 1
    if words[0] == "--version":
        from accelerate._version import __version__

        print(__version__)
        return 0
    modules = _modules()
    name = words[0].replace("_", "-")
    if name not in modules:
        return _unknown(words[0], list(modules))
    command = import_module(modules[name])
    code: int | None = command.main(words[1:])
    return code or 0


def _unknown(word: str, known: list[str]) -> int:
    from difflib import get_close_matches

    near = get_close_matches(word, known, n=1)
    if near:
        hint = f" Did you mean `accelerate {near[0]}`?"
    elif word.endswith(".py"):
        hint = f" To start a script: `accelerate launch {word}`."
    else:
        hint = f" Commands are {', '.join(known)}."
    print(f"accelerate: there is no command {word!r}.{hint}", file=sys.stderr)
    return 2


def report_error(command: str, error: Exception) -> int:
    """Shows an error that the library raised on purpose as one line, without a traceback, and returns the exit code."""
    print(f"accelerate {command}: {error}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
