"""The table of all settings for the documentation, made from their declarations."""

from __future__ import annotations

from accelerate.config.fields import Setting
from accelerate.config.kinds import BOOLEAN
from accelerate.config.run import all_settings
from accelerate.env import encode

__all__ = ["settings_table"]

INTRODUCTION = """\
# Settings of a launch

<!-- Made by `python -m accelerate.config.docs > docs/settings.md`; a test compares. -->

A setting can be said on the command line of `accelerate launch`, in an environment variable, or in a configuration
file. The command line goes first, then the environment, then the file, then the default. `accelerate config explain`
shows which one each value came from. Flags may be written with `-` in place of `_`.
"""


PROCESSES = """\
## Read by the processes themselves

These have no flag and no key; set them where the job is started.

| environment | default | |
|---|---|---|
| `ACCELERATE_CHECKPOINT_FSYNC` | `true` | `save_state` returns when the bytes are on the disk. `false`: a checkpoint \
survives the death of the process, not that of the machine. |
| `ACCELERATE_PREEMPTION_SIGNALS` | `SIGTERM,SIGUSR1` | Signals that `accelerator.should_stop` reports to all ranks. |
"""


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _value(item: Setting) -> str:
    option = item.option
    if option.choices:
        return ", ".join(_code(word) for word in option.choices)
    if option.kind is BOOLEAN:
        return "flag alone, or `true`, `false`" if option.action == "on" else "`true`, `false`"
    return option.kind.name


def _default(item: Setting) -> str:
    value = item.option.default
    if value is None or value in ((), ""):
        return ""
    return _code(encode(value))


def _row(item: Setting) -> str:
    flags = " ".join(_code(flag) for flag in item.flags if not flag.startswith("--") or "-" not in flag[2:])
    if item.option.flag_off:
        flags += f" {_code(item.option.flag_off)}"
    cells = (
        flags,
        _code(".".join(item.yaml or ())),
        " ".join(_code(name) for name in item.environment),
        _value(item),
        _default(item),
        item.option.help,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def settings_table() -> str:
    """All settings by subject, as Markdown."""
    subjects: dict[str, list[Setting]] = {}
    abouts: dict[str, str] = {}
    for item in all_settings():
        title = item.option.group or item.section.title
        subjects.setdefault(title, []).append(item)
        abouts.setdefault(title, item.section.about)
    lines = [INTRODUCTION]
    for title, items in subjects.items():
        lines += [f"## {title}", ""]
        if abouts[title]:
            lines += [abouts[title], ""]
        lines += ["| flag | file | environment | value | default | |", "|---|---|---|---|---|---|"]
        lines += [*(_row(item) for item in items), ""]
    return "\n".join([*lines, PROCESSES]).rstrip() + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(settings_table())
