"""FSDP asked for by a plugin in code and by the launch: the two must not contradict each other."""

from __future__ import annotations

from typing import Any

from accelerate import env
from accelerate.config.conflict import reconcile
from accelerate.config.fsdp import FullyShardedDataParallelPlugin

__all__ = ["agree_with_launch"]

# How a model is divided: nobody can have meant both.
_LAYOUT = {
    "fsdp_version": "FSDP_VERSION",
    "reshard_after_forward": "FSDP_RESHARD_AFTER_FORWARD",
    "cpu_offload": "FSDP_OFFLOAD_PARAMS",
    "activation_checkpointing": "FSDP_ACTIVATION_CHECKPOINTING",
    "transformer_cls_names_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP",
    "min_num_params": "FSDP_MIN_NUM_PARAMS",
}
# How it is loaded and saved: code, and libraries that fill in what a script left out, may choose.
_OTHERS = {
    "state_dict_type": "FSDP_STATE_DICT_TYPE",
    "cpu_ram_efficient_loading": "FSDP_CPU_RAM_EFFICIENT_LOADING",
}
# The version a launch says where nobody chose one.
_UNSAID = 1


def agree_with_launch(plugin: FullyShardedDataParallelPlugin) -> None:
    """Compares ``plugin`` with the launch, which asked for FSDP too; one notice for each harmless difference.

    Raises:
        ConflictError: they divide a model in different ways; the message quotes both.
    """
    said = {name: variable for name, variable in {**_LAYOUT, **_OTHERS}.items() if env.get(variable) is not None}
    if not said:
        return
    version = env.integer("FSDP_VERSION")
    if version == plugin.fsdp_version:
        launched = FullyShardedDataParallelPlugin()
    else:
        # Words of the other version say other things; compared is what both have.
        launched = FullyShardedDataParallelPlugin(fsdp_version=plugin.fsdp_version)
        launched.fsdp_version = version if version is not None else plugin.fsdp_version
        said.pop("reshard_after_forward", None)
    for name, variable in said.items():
        ours, theirs = getattr(plugin, name), getattr(launched, name)
        harmless = name in _OTHERS or (name == "fsdp_version" and theirs == _UNSAID)
        reconcile(
            name,
            ours,
            theirs,
            theirs,
            code=f"{name}={_word(ours)} in code",
            launch=f"{variable}={env.get(variable)} from the launch",
            rule="code" if harmless else "error",
        )


def _word(value: Any) -> str:
    return str(getattr(value, "name", value))
