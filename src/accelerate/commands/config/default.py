"""The configuration of a machine, under the path that others import its writer from."""

from __future__ import annotations

from accelerate.cli.config_basic import write_basic_config

__all__ = ["write_basic_config"]
