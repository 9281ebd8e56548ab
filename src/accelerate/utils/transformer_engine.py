"""Compatibility path of fp8 by Transformer Engine."""

from accelerate.modules import has_transformer_engine_layers
from accelerate.unbuilt import apply_fp8_autowrap, contextual_fp8_autocast, convert_model

__all__ = ["apply_fp8_autowrap", "contextual_fp8_autocast", "convert_model", "has_transformer_engine_layers"]
