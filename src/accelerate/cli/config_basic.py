"""The configuration of a machine, written without asking."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from accelerate import env
from accelerate.config.files import default_config_path
from accelerate.config.machine import machine_config
from accelerate.config.notice import notice
from accelerate.config.run import RunConfig
from accelerate.config.save import write
from accelerate.errors import ConfigError
from accelerate.launch.hardware import detect

__all__ = ["detected_config", "write_basic_config"]


def detected_config(mixed_precision: str = "no") -> RunConfig:
    """One process for each device of this machine."""
    devices = detect(env.snapshot())
    return machine_config(devices.type, devices.count, mixed_precision)


def write_basic_config(mixed_precision: str = "no", save_location: str | Path | None = None) -> Path | Literal[False]:
    """Writes the configuration of this machine, unless there is one: then False, with a notice.

    ``save_location`` is the default place unless given.
    """
    path = default_config_path() if save_location is None else Path(save_location)
    word = str(mixed_precision).lower()
    if word not in ("no", "fp16", "bf16", "fp8"):
        raise ConfigError(f"mixed_precision={mixed_precision!r} is not known: use no, fp16, bf16 or fp8.")
    if path.exists():
        notice(f"{path} exists and is left as it is. Remove it, or run `accelerate config`, to write another one.")
        return False
    return write(detected_config(word), path)
