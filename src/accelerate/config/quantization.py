"""How bitsandbytes quantises a model that is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from accelerate.config.enums import CustomDtype
from accelerate.errors import ConfigError, ConflictError

if TYPE_CHECKING:
    import torch

__all__ = ["BnbQuantizationConfig"]


def _dtype(field: str, value: Any) -> torch.dtype:
    import torch

    known = {
        "fp32": torch.float32,
        "float32": torch.float32,
        "fp16": torch.float16,
        "float16": torch.float16,
        "bf16": torch.bfloat16,
        "bfloat16": torch.bfloat16,
    }
    if isinstance(value, torch.dtype):
        return value
    if value not in known:
        raise ConfigError(f"{field}={value!r} is not known: use fp32, fp16, bf16 or a torch.dtype.")
    return known[value]


@dataclass
class BnbQuantizationConfig:
    """8-bit or 4-bit weights, and which modules keep theirs.

    ``skip_modules`` are not quantised, ``keep_in_fp32_modules`` stay in float32, and the other modules that are not
    quantised get ``torch_dtype`` (float16 by default). ``target_dtype`` is what a quantised weight counts as when
    memory is planned.
    """

    load_in_8bit: bool = False
    llm_int8_threshold: float = 6.0
    load_in_4bit: bool = False
    bnb_4bit_quant_type: str = "fp4"
    bnb_4bit_use_double_quant: bool = False
    bnb_4bit_compute_dtype: str = "fp16"
    torch_dtype: torch.dtype = None  # type: ignore[assignment]  # None: float16
    skip_modules: list[str] | None = None
    keep_in_fp32_modules: list[str] | None = None

    def __post_init__(self) -> None:
        for name in ("load_in_8bit", "load_in_4bit", "bnb_4bit_use_double_quant"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}={getattr(self, name)!r} has to be True or False.")
        if self.load_in_8bit == self.load_in_4bit:
            both = "both" if self.load_in_8bit else "neither"
            raise ConflictError(f"load_in_8bit and load_in_4bit: {both} is on. Switch exactly one of them on.")
        if self.bnb_4bit_quant_type not in ("fp4", "nf4"):
            raise ConfigError(f"bnb_4bit_quant_type={self.bnb_4bit_quant_type!r} is not known: use fp4 or nf4.")
        for name in ("skip_modules", "keep_in_fp32_modules"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, list):
                raise ConfigError(f"{name}={value!r} has to be a list of names.")
        import torch

        compute = _dtype("bnb_4bit_compute_dtype", self.bnb_4bit_compute_dtype)
        self.bnb_4bit_compute_dtype = compute  # type: ignore[assignment]  # public code reads a dtype here
        self.torch_dtype = torch.float16 if self.torch_dtype is None else _dtype("torch_dtype", self.torch_dtype)
        self.target_dtype = torch.int8 if self.load_in_8bit else CustomDtype.INT4
