"""Compatibility path of layers quantised by bitsandbytes."""

from accelerate.modules import has_4bit_bnb_layers
from accelerate.unbuilt import load_and_quantize_model

__all__ = ["has_4bit_bnb_layers", "load_and_quantize_model"]
