"""``accelerate completion``: what a shell needs to complete commands, flags and their values."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from accelerate.cli.base import new_parser, run

__all__ = ["completion_command", "completion_command_parser", "main"]

SHELLS = ("bash", "zsh", "fish")
WHERE = {
    "bash": 'eval "$(accelerate completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(accelerate completion zsh)" in ~/.zshrc, after compinit',
    "fish": "accelerate completion fish > ~/.config/fish/completions/accelerate.fish",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A flag as a shell completes it: its name, what it is for, and the words it takes (None: any)."""

    name: str
    about: str
    takes_value: bool
    choices: tuple[str, ...]


def completion_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """The parser of ``accelerate completion``; with ``subparsers`` it is added there."""
    parser = new_parser("completion", "Print what a shell needs to complete commands and flags.", subparsers)
    lines = "\n".join(f"  {line}" for line in WHERE.values())
    parser.epilog = f"To have it in every shell:\n{lines}"
    parser.add_argument("shell", choices=SHELLS, help="The shell.")
    if subparsers is not None:
        parser.set_defaults(func=completion_command)
    return parser


def _flags(parser: argparse.ArgumentParser) -> Iterator[Flag]:
    for action in parser._actions:
        for name in action.option_strings:
            if name.startswith("--") and "-" not in name[2:]:
                yield Flag(
                    name=name,
                    about=action.help if action.help not in (None, argparse.SUPPRESS) else "",
                    takes_value=action.nargs != 0,
                    choices=_choices(action),
                )


def _choices(action: argparse.Action) -> tuple[str, ...]:
    if action.choices:
        return tuple(str(choice) for choice in action.choices)
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    return tuple(metavar[1:-1].split(",")) if metavar.startswith("{") else ()


def _words(parser: argparse.ArgumentParser) -> list[str]:
    """Subcommands, or what the first positional argument may be."""
    found = [action.choices for action in parser._actions if not action.option_strings and action.choices]
    return [str(word) for word in found[0]] if found else []


def _tables() -> dict[str, tuple[str, list[Flag], list[str]]]:
    """Command → what it does, its flags, the words it takes first."""
    from accelerate.cli.main import COMMANDS

    tables = {}
    for group in COMMANDS.values():
        for name, (module, about) in group.items():
            home = import_module(module)
            maker = next(word for word in home.__all__ if word.endswith("_parser"))
            parser: argparse.ArgumentParser = getattr(home, maker)()
            tables[name] = (about, list(_flags(parser)), _words(parser))
    return tables


def _bash() -> str:
    tables = _tables()
    cases, values = [], []
    for name, (_, flags, subcommands) in tables.items():
        words = " ".join([*subcommands, *(flag.name for flag in flags)])
        cases.append(f"    {name}) words={shlex.quote(words)} ;;")
        for flag in flags:
            if flag.choices:
                values.append(f"    {name}:{flag.name}) choices={shlex.quote(' '.join(flag.choices))} ;;")
    return "\n".join(
        [
            "_accelerate() {",
            '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" command="${COMP_WORDS[1]}"',
            '  local words="" choices=""',
            '  if [ "$COMP_CWORD" -eq 1 ]; then',
            f'    COMPREPLY=( $(compgen -W {shlex.quote(" ".join(tables))} -- "$cur") )',
            "    return",
            "  fi",
            '  case "$command:$prev" in',
            *values,
            "  esac",
            '  if [ -n "$choices" ]; then',
            '    COMPREPLY=( $(compgen -W "$choices" -- "$cur") )',
            "    return",
            "  fi",
            '  case "$command" in',
            *cases,
            "  esac",
            '  case "$cur" in',
            '    -*) COMPREPLY=( $(compgen -W "$words" -- "$cur") ) ;;',
            '    *) COMPREPLY=( $(compgen -W "${words%%--*}" -- "$cur") $(compgen -f -- "$cur") ) ;;',
            "  esac",
            "}",
            "complete -o filenames -o bashdefault -F _accelerate accelerate",
            "",
        ]
    )


def _zsh() -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash()}"


def _fish() -> str:
    lines = []
    for name, (about, flags, subcommands) in _tables().items():
        lines.append(f"complete -c accelerate -n __fish_use_subcommand -f -a {name} -d {shlex.quote(about)}")
        there = f"-n '__fish_seen_subcommand_from {name}'"
        lines += [f"complete -c accelerate {there} -f -a {word}" for word in subcommands]
        for flag in flags:
            line = f"complete -c accelerate {there} -l {flag.name[2:]}"
            if flag.about:
                line += f" -d {shlex.quote(flag.about.replace('%%', '%'))}"
            if flag.takes_value:
                line += " -r"
            if flag.choices:
                line += f" -f -a {shlex.quote(' '.join(flag.choices))}"
            lines.append(line)
    return "\n".join(lines) + "\n"


def completion_command(args: argparse.Namespace) -> int:
    """Prints the completions for the shell of a parsed command line and returns 0."""
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](), end="")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``accelerate completion`` on ``argv`` (``sys.argv`` by default) and returns the exit code."""
    return run("completion", completion_command_parser(), completion_command, argv)


if __name__ == "__main__":
    sys.exit(main())
