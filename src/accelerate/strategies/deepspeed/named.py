"""Several named plugins in one job."""

from __future__ import annotations

from typing import Any

from accelerate.errors import ConfigError

__all__ = ["get_active_deepspeed_plugin"]


def get_active_deepspeed_plugin(state: Any) -> Any:
    """The DeepSpeed plugin that the next ``prepare`` uses.

    Args:
        state: An AcceleratorState, or an Accelerator's ``state``.

    Raises:
        ConfigError: the job does not train with DeepSpeed. A ValueError.
    """
    plugin = getattr(state, "deepspeed_plugin", None)
    if plugin is None:
        raise ConfigError(
            "The active DeepSpeed plugin was asked for, but this job does not train with DeepSpeed. Pass "
            "deepspeed_plugin= to Accelerator(), or launch with --use_deepspeed."
        )
    return plugin
