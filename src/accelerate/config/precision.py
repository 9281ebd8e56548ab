"""Recipes of fp8 training, one for each back end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from accelerate.config.filling import fill, filled
from accelerate.config.handlers import KwargsHandler
from accelerate.config.sections.precision import Fp8Section
from accelerate.errors import ConfigError

__all__ = ["AORecipeKwargs", "FP8RecipeKwargs", "MSAMPRecipeKwargs", "TERecipeKwargs"]


def _word(name: str, value: Any, choices: tuple[str, ...]) -> str:
    for choice in choices:
        if choice.lower() == str(value).lower():
            return choice
    raise ConfigError(f"{name}={value!r} is not one of {', '.join(choices)}.")


@dataclass
class AORecipeKwargs(KwargsHandler):
    """torchao: ``config`` is its ``Float8LinearConfig``; without one it is made from the other fields.

    ``module_filter_func(module, name)`` chooses the linear layers to convert.
    """

    config: Any | None = None
    module_filter_func: Callable[..., Any] | None = None
    pad_inner_dim: bool | None = filled(Fp8Section, "pad_inner_dim", fallback=True)
    enable_fsdp_float8_all_gather: bool | None = filled(Fp8Section, "enable_fsdp_float8_all_gather", fallback=True)

    def __post_init__(self) -> None:
        fill(self)


@dataclass
class TERecipeKwargs(KwargsHandler):
    """Transformer Engine: the arguments of its scaling recipe."""

    use_autocast_during_eval: bool | None = filled(Fp8Section, "use_autocast_during_eval", fallback=False)
    margin: int | None = filled(Fp8Section, "margin", fallback=0)
    interval: int | None = filled(Fp8Section, "interval", fallback=1)
    fp8_format: Literal["HYBRID", "E4M3", "E5M2"] = filled(Fp8Section, "format", fallback="HYBRID")
    amax_history_len: int | None = filled(Fp8Section, "amax_history_len", fallback=1024)
    amax_compute_algo: Literal["max", "most_recent"] = filled(Fp8Section, "amax_compute_algo", fallback="most_recent")
    override_linear_precision: tuple[bool, bool, bool] = filled(
        Fp8Section, "override_linear_precision", fallback=(False, False, False)
    )
    use_mxfp8_block_scaling: bool | None = filled(Fp8Section, "use_mxfp8_block_scaling", fallback=False)

    def __post_init__(self) -> None:
        fill(self)
        formats = ("HYBRID", "E4M3", "E5M2")
        self.fp8_format = _word("fp8_format", self.fp8_format, formats)  # type: ignore[assignment]
        algorithms = ("max", "most_recent")
        self.amax_compute_algo = _word("amax_compute_algo", self.amax_compute_algo, algorithms)  # type: ignore[assignment]


@dataclass
class MSAMPRecipeKwargs(KwargsHandler):
    """MS-AMP: how much is kept in 8 bits."""

    opt_level: Literal["O1", "O2"] = filled(Fp8Section, "opt_level", fallback="O2")

    def __post_init__(self) -> None:
        fill(self)
        self.opt_level = _word("opt_level", self.opt_level, ("O1", "O2"))  # type: ignore[assignment]


@dataclass
class FP8RecipeKwargs(TERecipeKwargs, MSAMPRecipeKwargs):
    """An older name for both recipes; ``backend`` says which one is meant. Prefer the recipe of the back end."""

    backend: Literal["MSAMP", "TE"] = filled(Fp8Section, "backend", fallback="TE")

    def __post_init__(self) -> None:
        TERecipeKwargs.__post_init__(self)
        if str(self.backend).lower() == "ao":
            raise ConfigError(
                "FP8RecipeKwargs stands for Transformer Engine and MS-AMP, but the back end of this launch is ao: "
                "pass AORecipeKwargs instead."
            )
        self.backend = _word("backend", self.backend, ("TE", "MSAMP"))  # type: ignore[assignment]
        self.opt_level = _word("opt_level", self.opt_level, ("O1", "O2"))  # type: ignore[assignment]
