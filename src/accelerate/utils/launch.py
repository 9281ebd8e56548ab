"""Compatibility path: commands and environments of a launch."""

from __future__ import annotations

from accelerate import lazy

HOMES = {
    "accelerate.cli.programs": (
        "prepare_deepspeed_cmd_env prepare_multi_gpu_env prepare_sagemager_args_inputs "
        "prepare_simple_launcher_cmd_env prepare_tpu"
    ),
    "accelerate.launch.ranks": "PrepareForLaunch",
}

__getattr__, __dir__, __all__ = lazy.attach(__name__, lazy.by_name(HOMES))
