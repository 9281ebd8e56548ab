"""Settings of DeepSpeed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from accelerate.config.constants import DEEPSPEED_LAUNCHERS, OFFLOAD_DEVICES
from accelerate.config.fields import Section, option
from accelerate.config.kinds import BOOLEAN, WHOLE, WORDS

__all__ = ["DeepSpeedSection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedSection:
    """What ``deepspeed_config`` and the DeepSpeed flags say. None leaves the choice to the plugin or its JSON."""

    SECTION: ClassVar[Section] = Section(
        name="deepspeed",
        title="DeepSpeed",
        yaml="deepspeed_config",
        about="In force with --use_deepspeed, or `distributed_type: DEEPSPEED` in a file.",
    )

    deepspeed_config_file: str | None = option(
        None,
        env="ACCELERATE_DEEPSPEED_CONFIG_FILE",
        help="DeepSpeed's own JSON. What it sets cannot be set by the other flags.",
        ask="Path of a DeepSpeed JSON (empty: answer questions instead)?",
    )
    zero_stage: int | None = option(
        None,
        kind=WHOLE,
        env="ACCELERATE_DEEPSPEED_ZERO_STAGE",
        help="What ZeRO shards: 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters.",
        ask="Which ZeRO stage?",
    )
    offload_optimizer_device: str | None = option(
        None,
        env="ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
        choices=OFFLOAD_DEVICES,
        help="Where optimizer state is kept (stages 2 and 3).",
        ask="Where is optimizer state kept?",
    )
    offload_param_device: str | None = option(
        None,
        env="ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
        choices=OFFLOAD_DEVICES,
        help="Where parameters are kept (stage 3).",
        ask="Where are parameters kept?",
    )
    offload_optimizer_nvme_path: str | None = option(
        None,
        env="ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH",
        help="Folder on an NVMe disk for optimizer state (stage 3).",
        ask="Folder on an NVMe disk for optimizer state?",
    )
    offload_param_nvme_path: str | None = option(
        None,
        env="ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH",
        help="Folder on an NVMe disk for parameters (stage 3).",
        ask="Folder on an NVMe disk for parameters?",
    )
    zero3_init_flag: bool | None = option(
        None,
        kind=BOOLEAN,
        env="ACCELERATE_DEEPSPEED_ZERO3_INIT",
        help="Create large transformers models sharded from the start (stage 3).",
        ask="Create models sharded from the start?",
    )
    zero3_save_16bit_model: bool | None = option(
        None,
        kind=BOOLEAN,
        env="ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
        help="Gather the 16-bit weights when a model is saved (stage 3).",
        ask="Gather the 16-bit weights when a model is saved?",
    )
    deepspeed_hostfile: str | None = option(
        None,
        help="Hosts and their slots, for several machines.",
        ask="Path of the host file?",
    )
    deepspeed_exclusion_filter: str | None = option(
        None,
        help="Hosts or devices of the host file that are left out.",
    )
    deepspeed_inclusion_filter: str | None = option(
        None,
        help="The only hosts or devices of the host file that are used.",
    )
    deepspeed_multinode_launcher: str | None = option(
        None,
        choices=tuple(DEEPSPEED_LAUNCHERS),
        help="How processes are started on other machines.",
        ask="How are processes started on other machines?",
    )
    deepspeed_moe_layer_cls_names: tuple[str, ...] | None = option(
        None,
        kind=WORDS,
        env="ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
        help="Names of mixture-of-experts layer classes, with commas between them, which ZeRO-3 treats as one.",
    )
