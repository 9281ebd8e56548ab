"""Settings of the device mesh: how many ways each kind of parallelism splits the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from accelerate.config.fields import Section, option
from accelerate.config.kinds import BOOLEAN, WHOLE

__all__ = ["ParallelismSection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelismSection:
    """What ``parallelism_config`` and the ``--parallelism_config_*`` flags say."""

    SECTION: ClassVar[Section] = Section(
        name="parallelism",
        title="Parallelism sizes",
        yaml="parallelism_config",
        flag_prefix="parallelism_config_",
        yaml_prefix="parallelism_config_",
        about="In force with --use_parallelism_config, or with this section in a file.",
    )

    dp_replicate_size: int = option(
        1,
        kind=WHOLE,
        env="PARALLELISM_CONFIG_DP_REPLICATE_SIZE",
        help="Copies of the model that each see their own data.",
        ask="How many copies of the (sharded) model?",
    )
    dp_shard_size: int = option(
        1,
        kind=WHOLE,
        env="PARALLELISM_CONFIG_DP_SHARD_SIZE",
        help="Ranks over which a copy is sharded (FSDP).",
        ask="Over how many ranks is a copy sharded?",
    )
    tp_size: int = option(
        1,
        kind=WHOLE,
        env="PARALLELISM_CONFIG_TP_SIZE",
        help="Ranks over which each layer is split (tensor parallelism).",
        ask="Over how many ranks is each layer split (tensor parallelism)?",
    )
    cp_size: int = option(
        1,
        kind=WHOLE,
        env="PARALLELISM_CONFIG_CP_SIZE",
        help="Ranks over which each sequence is split (context parallelism).",
        ask="Over how many ranks is each sequence split (context parallelism)?",
    )
    cp_backend: str = option(
        "torch",
        env="PARALLELISM_CONFIG_CP_BACKEND",
        choices=("torch",),
        help="Who does context parallelism.",
    )
    cp_comm_strategy: str = option(
        "allgather",
        env="PARALLELISM_CONFIG_CP_COMM_STRATEGY",
        choices=("allgather", "alltoall"),
        help="How keys and values travel in context parallelism.",
        ask="How do keys and values travel in context parallelism?",
    )
    sp_size: int = option(
        1,
        kind=WHOLE,
        env="PARALLELISM_CONFIG_SP_SIZE",
        help="Ranks over which each sequence is split (Ulysses sequence parallelism, DeepSpeed).",
        ask="Over how many ranks is each sequence split (sequence parallelism)?",
    )
    sp_backend: str = option(
        "deepspeed",
        env="PARALLELISM_CONFIG_SP_BACKEND",
        choices=("deepspeed",),
        help="Who does sequence parallelism.",
    )
    sp_seq_length: int | None = option(
        None,
        kind=WHOLE,
        env="PARALLELISM_CONFIG_SP_SEQ_LENGTH",
        help="Length of the sequences, where it is fixed.",
    )
    sp_seq_length_is_variable: bool = option(
        True,
        kind=BOOLEAN,
        env="PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE",
        help="Whether batches differ in sequence length.",
    )
    sp_attn_implementation: str = option(
        "sdpa",
        env="PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION",
        help="Attention under sequence parallelism: sdpa, flash_attention_2, flash_attention_3 or a hub kernel.",
    )
