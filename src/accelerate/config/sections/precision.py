"""Settings of fp8 training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from accelerate.config.fields import Section, option
from accelerate.config.kinds import BOOLEAN, TRIPLE, WHOLE

__all__ = ["Fp8Section"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Section:
    """What ``fp8_config`` and the ``--fp8_*`` flags say."""

    SECTION: ClassVar[Section] = Section(
        name="fp8",
        title="fp8",
        yaml="fp8_config",
        flag_prefix="fp8_",
        about="In force with --mixed_precision fp8.",
    )

    backend: str | None = option(
        None,
        env="ACCELERATE_FP8_BACKEND",
        yaml_aliases=("fp8_backend",),
        choices=("ao", "te", "msamp"),
        help="Who does fp8: torchao, Transformer Engine or MS-AMP.",
        ask="Who does fp8?",
    )
    use_autocast_during_eval: bool = option(
        False,
        kind=BOOLEAN,
        action="on",
        env="ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL",
        yaml_aliases=("fp8_use_autocast_during_eval",),
        help="Use fp8 in evaluation too (te).",
        ask="Use fp8 in evaluation too?",
    )
    margin: int = option(
        0,
        kind=WHOLE,
        env="ACCELERATE_FP8_MARGIN",
        yaml_aliases=("fp8_margin",),
        help="Margin of the scaling factor (te).",
        ask="Margin of the scaling factor?",
    )
    interval: int = option(
        1,
        kind=WHOLE,
        env="ACCELERATE_FP8_INTERVAL",
        yaml_aliases=("fp8_interval",),
        help="Steps between two computations of the scaling factor (te).",
        ask="Steps between two computations of the scaling factor?",
    )
    format: str = option(
        "HYBRID",
        env="ACCELERATE_FP8_FORMAT",
        yaml="fp8_format",
        yaml_aliases=("format",),
        choices=("HYBRID", "E4M3", "E5M2"),
        help="Number format (te).",
        ask="Number format?",
    )
    amax_history_len: int = option(
        1024,
        kind=WHOLE,
        env="ACCELERATE_FP8_AMAX_HISTORY_LEN",
        yaml_aliases=("fp8_amax_history_length", "amax_history_length", "fp8_amax_history_len"),
        help="Length of the history of largest values (te).",
        ask="Length of the history of largest values?",
    )
    amax_compute_algo: str = option(
        "most_recent",
        env="ACCELERATE_FP8_AMAX_COMPUTE_ALGO",
        yaml_aliases=("fp8_amax_compute_algorithm", "amax_compute_algorithm", "fp8_amax_compute_algo"),
        choices=("max", "most_recent"),
        help="How the largest value is taken from the history (te).",
        ask="How is the largest value taken from the history?",
    )
    override_linear_precision: tuple[bool, bool, bool] = option(
        (False, False, False),
        kind=TRIPLE,
        env="ACCELERATE_FP8_OVERRIDE_LINEAR_PRECISION",
        yaml_aliases=("fp8_override_linear_precision",),
        help="Whether forward, input gradient and weight gradient stay in higher precision (te).",
    )
    use_mxfp8_block_scaling: bool = option(
        False,
        kind=BOOLEAN,
        env="ACCELERATE_FP8_USE_MXFP8_BLOCK_SCALING",
        yaml_aliases=("fp8_use_mxfp8_block_scaling",),
        help="Scale blocks instead of tensors (te).",
    )
    opt_level: str = option(
        "O2",
        env="ACCELERATE_FP8_OPT_LEVEL",
        yaml_aliases=("fp8_opt_level", "optimization_level", "fp8_optimization_level"),
        choices=("O1", "O2"),
        help="How much is kept in 8 bits (msamp).",
        ask="How much is kept in 8 bits?",
    )
    enable_fsdp_float8_all_gather: bool = option(
        True,
        kind=BOOLEAN,
        env="ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER",
        yaml_aliases=("fp8_enable_fsdp_float8_all_gather",),
        help="Gather FSDP2 shards in 8 bits (ao).",
    )
    pad_inner_dim: bool = option(
        True,
        kind=BOOLEAN,
        env="ACCELERATE_FP8_PAD_INNER_DIM",
        yaml_aliases=("fp8_pad_inner_dim",),
        help="Pad inner dimensions to what the hardware multiplies (ao).",
    )
