"""Configuration files as records, under the path that others import them from."""

from __future__ import annotations

from accelerate import lazy

HOMES = {
    "accelerate.config.enums": "ComputeEnvironment DistributedType SageMakerDistributedType",
    "accelerate.config.places": (
        "cache_dir default_config_file default_json_config_file default_yaml_config_file hf_cache_home"
    ),
    "accelerate.config.records": "BaseConfig ClusterConfig SageMakerConfig load_config_from_file",
}

__getattr__, __dir__, __all__ = lazy.attach(__name__, lazy.by_name(HOMES))
