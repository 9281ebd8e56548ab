"""Settings of fully sharded data parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from accelerate.config.constants import (
    FSDP_AUTO_WRAP_ALIASES,
    FSDP_AUTO_WRAP_POLICY,
    FSDP_BACKWARD_PREFETCH,
    FSDP_SHARDING_STRATEGY,
    FSDP_STATE_DICT_TYPE,
)
from accelerate.config.fields import Section, option
from accelerate.config.kinds import BOOLEAN, RESHARD, WHOLE, WORDS

__all__ = ["FsdpSection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FsdpSection:
    """What ``fsdp_config`` and the ``--fsdp_*`` flags say. None leaves the choice to the plugin."""

    SECTION: ClassVar[Section] = Section(
        name="fsdp",
        title="Fully sharded data parallelism",
        yaml="fsdp_config",
        flag_prefix="fsdp_",
        yaml_prefix="fsdp_",
        about="In force with --use_fsdp, or `distributed_type: FSDP` in a file.",
    )

    version: int | None = option(
        None,
        kind=WHOLE,
        env="FSDP_VERSION",
        choices=("1", "2"),
        cli_default="1",
        help="Version of FSDP: 1 (FullyShardedDataParallel) or 2 (fully_shard).",
        ask="Which version of FSDP?",
    )
    sharding_strategy: str | None = option(
        None,
        env="FSDP_SHARDING_STRATEGY",
        choices=tuple(FSDP_SHARDING_STRATEGY),
        choice_aliases=tuple((str(number), word) for number, word in enumerate(FSDP_SHARDING_STRATEGY, 1)),
        cli_default="FULL_SHARD",
        help="What is sharded (version 1).",
        ask="What is to be sharded?",
    )
    reshard_after_forward: bool | int | str | None = option(
        None,
        kind=RESHARD,
        env="FSDP_RESHARD_AFTER_FORWARD",
        cli_default="true",
        help="Free gathered parameters after the forward pass, or keep them whole in groups of N (version 2).",
        ask="Free gathered parameters after the forward pass?",
    )
    offload_params: bool | None = option(
        None,
        kind=BOOLEAN,
        env="FSDP_OFFLOAD_PARAMS",
        yaml_aliases=("fsdp_cpu_offload",),
        cli_default="false",
        help="Keep parameters and gradients in host memory.",
        ask="Keep parameters and gradients in host memory?",
    )
    auto_wrap_policy: str | None = option(
        None,
        env="FSDP_AUTO_WRAP_POLICY",
        choices=tuple(FSDP_AUTO_WRAP_POLICY),
        choice_aliases=FSDP_AUTO_WRAP_ALIASES,
        help="How the model is cut into units.",
        ask="How is the model cut into units?",
    )
    transformer_layer_cls_to_wrap: tuple[str, ...] | None = option(
        None,
        kind=WORDS,
        env="FSDP_TRANSFORMER_CLS_TO_WRAP",
        help="Names of the layer classes that become units, with commas between them.",
        ask="Names of the layer classes that become units (empty: those the model names itself)?",
    )
    min_num_params: int | None = option(
        None,
        kind=WHOLE,
        env="FSDP_MIN_NUM_PARAMS",
        cli_default=100_000_000,
        help="Smallest number of parameters of a unit, where units are cut by size.",
        ask="Smallest number of parameters of a unit?",
    )
    backward_prefetch: str | None = option(
        None,
        env="FSDP_BACKWARD_PREFETCH",
        choices=tuple(FSDP_BACKWARD_PREFETCH),
        choice_aliases=tuple((str(number), word) for number, word in enumerate(FSDP_BACKWARD_PREFETCH, 1)),
        help="When the next unit is gathered during the backward pass (version 1).",
        ask="When is the next unit gathered during the backward pass?",
    )
    forward_prefetch: bool | None = option(
        None,
        kind=BOOLEAN,
        env="FSDP_FORWARD_PREFETCH",
        cli_default="false",
        help="Gather the next unit before the current one has finished its forward pass (version 1).",
        ask="Gather the next unit ahead during the forward pass?",
    )
    state_dict_type: str | None = option(
        None,
        env="FSDP_STATE_DICT_TYPE",
        choices=tuple(FSDP_STATE_DICT_TYPE),
        choice_aliases=tuple((str(number), word) for number, word in enumerate(FSDP_STATE_DICT_TYPE, 1)),
        help="How the model's state is written in checkpoints.",
        ask="How is the model's state written in checkpoints?",
    )
    use_orig_params: bool | None = option(
        None,
        kind=BOOLEAN,
        env="FSDP_USE_ORIG_PARAMS",
        cli_default="true",
        help="Show the optimizer the original parameters instead of flat ones (version 1).",
        ask="Show the optimizer the original parameters?",
    )
    cpu_ram_efficient_loading: bool | None = option(
        None,
        kind=BOOLEAN,
        env="FSDP_CPU_RAM_EFFICIENT_LOADING",
        cli_default="true",
        help="Load pretrained weights on the first process only and send the shards to the others.",
        ask="Load pretrained weights on the first process only?",
    )
    sync_module_states: bool | None = option(
        None,
        kind=BOOLEAN,
        env="FSDP_SYNC_MODULE_STATES",
        cli_default="true",
        help="Start all processes from the first one's weights (version 1).",
        ask="Start all processes from the first one's weights?",
    )
    activation_checkpointing: bool | None = option(
        None,
        kind=BOOLEAN,
        env="FSDP_ACTIVATION_CHECKPOINTING",
        cli_default="false",
        help="Compute activations again in the backward pass instead of keeping them.",
        ask="Compute activations again in the backward pass, to save memory?",
    )
    activation_checkpointing_offload: bool | None = option(
        None,
        kind=BOOLEAN,
        env="FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD",
        cli_default="false",
        help="Move kept activations to host memory.",
    )
    ignored_modules: str | None = option(
        None,
        env="FSDP_IGNORED_MODULES",
        flag=None,
        help="Name, or pattern of names, of modules that are not sharded.",
    )
