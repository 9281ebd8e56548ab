"""The ``gcloud`` command that reaches all machines of a TPU pod."""

from __future__ import annotations

from collections.abc import Sequence

from accelerate.errors import LaunchError

__all__ = ["ssh_command"]


def ssh_command(name: str | None, zone: str | None, commands: Sequence[str], *, alpha: bool = False) -> tuple[str, ...]:
    """The words that run ``commands`` one after the other on each machine of TPU ``name``; the first to fail ends it.

    Raises:
        LaunchError: name, zone or commands are missing.
    """
    if not name or not zone:
        raise LaunchError(
            f"Commands on TPU {name or '(no name)'!r} in zone {zone or '(no zone)'!r} were asked for, but gcloud needs "
            "both. Give --tpu_name and --tpu_zone, or tpu_name and tpu_zone in the configuration file."
        )
    if not commands:
        raise LaunchError(
            f"No command for TPU {name!r} was given. Give --command, --command_file or --install_accelerate, or "
            "commands in the configuration file."
        )
    service = ("gcloud", *(("alpha",) if alpha else ()), "compute", "tpus", "tpu-vm", "ssh")
    return (*service, name, "--zone", zone, "--worker", "all", "--command", " && ".join(commands))
