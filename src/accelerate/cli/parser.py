"""The command line of ``accelerate launch``, made from the declarations of the settings.

Attributes of the parsed result have the names and defaults that the public interface promises; which of them the user
gave is kept beside them (:data:`GIVEN`), since a flag that repeats a default still goes before a configuration file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from accelerate.config.fields import Setting
from accelerate.config.kinds import BOOLEAN, NUMBER, TEXT, WHOLE
from accelerate.config.run import all_settings

__all__ = ["GIVEN", "HelpFormatter", "build_launch_parser", "declare"]

GIVEN = "_given"
"""The attribute of a parsed result that holds the ``dest`` of every flag that was given."""

LONGEST_CHOICES = 28  # of which the value's place in the help names all

USAGE = "accelerate launch [options] script [arguments of the script]"
DESCRIPTION = "Start a script in any number of processes, on any number of machines."


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help that shows one spelling of a flag, and its value once."""

    def __init__(self, prog: str, indent_increment: int = 2, max_help_position: int = 30, width: int | None = None):
        super().__init__(prog, indent_increment, max_help_position, width)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        names = [name for name in action.option_strings if not (name.startswith("--") and "-" in name[2:])]
        text = ", ".join(names or action.option_strings[:1])
        if action.nargs == 0:
            return text
        return f"{text} {self._format_args(action, self._get_default_metavar_for_optional(action))}"


def _note(namespace: argparse.Namespace, dest: str) -> None:
    given: set[str] = getattr(namespace, GIVEN, set())
    setattr(namespace, GIVEN, given | {dest})


class _Value(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, values)
        _note(namespace, self.dest)


class _Append(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        held = getattr(namespace, self.dest, None) or []
        setattr(namespace, self.dest, [*held, values])
        _note(namespace, self.dest)


class _Constant(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, const: Any, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, const=const, **kwargs)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, self.const)
        _note(namespace, self.dest)


def _reader(item: Setting) -> Callable[[str], Any]:
    """Reads the text of a flag. Where the interface promises text (``"false"``), it is checked and kept as text."""
    option = item.option
    keep_text = option.kind not in (WHOLE, NUMBER) and not (
        option.kind is BOOLEAN and isinstance(option.cli_default, bool)
    )

    def read(text: str) -> Any:
        try:
            value = item.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if option.choices and option.kind is TEXT:
            return value
        return text if keep_text or option.choices else value

    return read


def declare(group: argparse._ActionsContainer, item: Setting, *, hidden: bool = False) -> None:
    """Adds the flags of one setting to a parser or a group of it."""
    option = item.option
    text = argparse.SUPPRESS if hidden else option.help.replace("%", "%%")
    common: dict[str, Any] = {"dest": item.dest, "default": option.cli_default, "help": text}
    if option.action == "on":
        group.add_argument(*item.flags, action=_Constant, const=True, **common)
        if option.flag_off:
            off = (option.flag_off, option.flag_off[:2] + option.flag_off[2:].replace("_", "-"))
            common["help"] = f"The opposite of {item.flag}."
            group.add_argument(*off, action=_Constant, const=False, **common)
        return
    action = _Append if option.action == "append" else _Value
    common["metavar"] = option.kind.metavar
    if option.choices:
        words = "{" + ",".join(option.choices) + "}"
        if len(words) <= LONGEST_CHOICES:
            common["metavar"] = words
        elif not hidden:
            common["help"] += f" One of {', '.join(option.choices)}."
    read = item.option.kind.read if option.action == "append" else _reader(item)
    group.add_argument(*item.flags, action=action, type=str if option.action == "append" else read, **common)


def build_launch_parser(
    parser: argparse.ArgumentParser | None = None, suppress: bool = False, *, script_required: bool = True
) -> argparse.ArgumentParser:
    """A parser (``parser``, where one is given) with every launch flag, the script and its arguments.

    With ``suppress`` the flags work without standing in the help. Without ``script_required`` the script may be None.
    """
    if parser is None:
        parser = argparse.ArgumentParser(
            "accelerate launch",
            usage=USAGE,
            description=DESCRIPTION,
            formatter_class=HelpFormatter,
            allow_abbrev=False,
        )
    parser.add_argument(
        "--config_file",
        "--config-file",
        default=None,
        metavar="FILE",
        help=argparse.SUPPRESS if suppress else "Configuration file. Default: the one that `accelerate config` wrote.",
    )
    groups: dict[str, argparse._ActionsContainer] = {}
    for item in all_settings():
        if not item.flags:
            continue
        title = item.option.group or item.section.title
        if title not in groups:
            groups[title] = parser.add_argument_group(title, None if suppress else item.section.about or None)
        declare(groups[title], item, hidden=suppress)
    optional: dict[str, Any] = {} if script_required else {"nargs": "?", "default": None}
    parser.add_argument("training_script", metavar="script", help="The script to start.", **optional)
    parser.add_argument(
        "training_script_args",
        metavar="...",
        nargs=argparse.REMAINDER,
        help="What follows the script is handed to it.",
    )
    return parser
