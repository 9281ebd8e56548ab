"""Compatibility path of pipelines for inference."""

from accelerate import lazy

HOMES = {"accelerate.unbuilt": "build_pipeline find_pippy_batch_size generate_device_map pippy_forward prepare_pippy"}

__getattr__, __dir__, __all__ = lazy.attach(__name__, lazy.by_name(HOMES))
