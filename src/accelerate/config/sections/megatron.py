"""Settings of Megatron-LM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from accelerate.config.fields import Section, option
from accelerate.config.kinds import BOOLEAN, NUMBER, WHOLE

__all__ = ["MegatronSection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronSection:
    """What ``megatron_lm_config`` and the ``--megatron_lm_*`` flags say. None leaves the choice to the plugin."""

    SECTION: ClassVar[Section] = Section(
        name="megatron",
        title="Megatron-LM",
        yaml="megatron_lm_config",
        flag_prefix="megatron_lm_",
        yaml_prefix="megatron_lm_",
        about="In force with --use_megatron_lm, or `distributed_type: MEGATRON_LM` in a file.",
    )

    tp_degree: int = option(
        1,
        kind=WHOLE,
        env="MEGATRON_LM_TP_DEGREE",
        help="Ranks over which each layer is split.",
        ask="Tensor parallel degree?",
    )
    pp_degree: int = option(
        1,
        kind=WHOLE,
        env="MEGATRON_LM_PP_DEGREE",
        help="Stages of the pipeline.",
        ask="Pipeline parallel degree?",
    )
    num_micro_batches: int | None = option(
        None,
        kind=WHOLE,
        env="MEGATRON_LM_NUM_MICRO_BATCHES",
        help="Micro-batches a pipeline takes in one step.",
        ask="Number of micro-batches?",
    )
    sequence_parallelism: bool | None = option(
        None,
        kind=BOOLEAN,
        env="MEGATRON_LM_SEQUENCE_PARALLELISM",
        help="Split activations outside the tensor parallel blocks along the sequence.",
        ask="Use sequence parallelism?",
    )
    recompute_activations: bool | None = option(
        None,
        kind=BOOLEAN,
        env="MEGATRON_LM_RECOMPUTE_ACTIVATIONS",
        help="Compute activations again in the backward pass (selectively).",
        ask="Compute activations again in the backward pass?",
    )
    use_distributed_optimizer: bool | None = option(
        None,
        kind=BOOLEAN,
        env="MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER",
        help="Shard optimizer state over the data parallel ranks.",
        ask="Shard optimizer state over the data parallel ranks?",
    )
    gradient_clipping: float = option(
        1.0,
        kind=NUMBER,
        env="MEGATRON_LM_GRADIENT_CLIPPING",
        help="Largest global norm of the gradient; 0 switches clipping off.",
        ask="Largest norm of the gradient?",
    )
    use_custom_fsdp: bool = option(
        False,
        kind=BOOLEAN,
        env="MEGATRON_LM_USE_CUSTOM_FSDP",
        help="Use Megatron's own fully sharded data parallelism.",
    )
    no_load_optim: bool = option(
        False,
        kind=BOOLEAN,
        env="MEGATRON_LM_NO_LOAD_OPTIM",
        help="Leave optimizer state out when a checkpoint is loaded.",
    )
    no_save_optim: bool = option(
        False,
        kind=BOOLEAN,
        env="MEGATRON_LM_NO_SAVE_OPTIM",
        help="Leave optimizer state out when a checkpoint is saved.",
    )
    eod_mask_loss: bool = option(
        False,
        kind=BOOLEAN,
        env="MEGATRON_LM_EOD_MASK_LOSS",
        help="Mask the loss of end-of-document tokens.",
    )
    optimizer_cpu_offload: bool = option(
        False,
        kind=BOOLEAN,
        env="MEGATRON_LM_OPTIMIZER_CPU_OFFLOAD",
        help="Keep optimizer state in host memory.",
    )
    overlap_cpu_optimizer_d2h_h2d: bool = option(
        False,
        kind=BOOLEAN,
        env="MEGATRON_LM_OVERLAP_CPU_OPTIMIZER_D2H_H2D",
        help="Overlap the copies of an optimizer that is kept in host memory.",
    )
    use_precision_aware_optimizer: bool = option(
        False,
        kind=BOOLEAN,
        env="MEGATRON_LM_USE_PRECISION_AWARE_OPTIMIZER",
        help="Let the optimizer keep its state in lower precision.",
    )
    decoder_last_pipeline_num_layers: int | None = option(
        None,
        kind=WHOLE,
        env="MEGATRON_LM_DECODER_LAST_PIPELINE_NUM_LAYERS",
        help="Layers of the last pipeline stage, where the cut is uneven.",
    )
    recompute_granularity: str | None = option(
        None,
        env="MEGATRON_LM_RECOMPUTE_GRANULARITY",
        choices=("full", "selective"),
        help="What is computed again: full or selective.",
    )
    recompute_method: str | None = option(
        None,
        env="MEGATRON_LM_RECOMPUTE_METHOD",
        choices=("uniform", "block"),
        help="Which layers are computed again: uniform or block.",
    )
    recompute_num_layers: int | None = option(
        None,
        kind=WHOLE,
        env="MEGATRON_LM_RECOMPUTE_NUM_LAYERS",
        help="Layers in a group that is computed again.",
    )
    attention_backend: str | None = option(
        None,
        env="MEGATRON_LM_ATTENTION_BACKEND",
        help="Implementation of attention.",
    )
    attention_dropout: float | None = option(
        None,
        kind=NUMBER,
        env="MEGATRON_LM_ATTENTION_DROPOUT",
        help="Dropout of attention weights.",
    )
    hidden_dropout: float | None = option(
        None,
        kind=NUMBER,
        env="MEGATRON_LM_HIDDEN_DROPOUT",
        help="Dropout of hidden states.",
    )
    attention_softmax_in_fp32: bool | None = option(
        None,
        kind=BOOLEAN,
        env="MEGATRON_LM_ATTENTION_SOFTMAX_IN_FP32",
        help="Softmax of attention in float32.",
    )
    expert_model_parallel_size: int | None = option(
        None,
        kind=WHOLE,
        env="MEGATRON_LM_EXPERT_MODEL_PARALLEL_SIZE",
        help="Ranks over which experts are spread.",
    )
    expert_tensor_parallel_size: int | None = option(
        None,
        kind=WHOLE,
        env="MEGATRON_LM_EXPERT_TENSOR_PARALLEL_SIZE",
        help="Ranks over which each expert is split.",
    )
    context_parallel_size: int | None = option(
        None,
        kind=WHOLE,
        env="MEGATRON_LM_CONTEXT_PARALLEL_SIZE",
        help="Ranks over which each sequence is split.",
    )
    calculate_per_token_loss: bool | None = option(
        None,
        kind=BOOLEAN,
        env="MEGATRON_LM_CALCULATE_PER_TOKEN_LOSS",
        help="Average the loss over tokens instead of micro-batches.",
    )
    use_rotary_position_embeddings: bool | None = option(
        None,
        kind=BOOLEAN,
        env="MEGATRON_LM_USE_ROTARY_POSITION_EMBEDDINGS",
        help="Rotary position embeddings.",
    )
