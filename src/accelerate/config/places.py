"""Where configuration files are, as text that is worked out when it is asked for and not at import."""

from __future__ import annotations

from accelerate.config.files import cache_directory, default_config_path

__all__ = [
    "cache_dir",
    "default_config_file",
    "default_json_config_file",
    "default_yaml_config_file",
    "hf_cache_home",
]

hf_cache_home: str
cache_dir: str
default_yaml_config_file: str
default_json_config_file: str
default_config_file: str


def __getattr__(name: str) -> str:
    folder = cache_directory()
    places = {
        "hf_cache_home": folder.parent,
        "cache_dir": folder,
        "default_yaml_config_file": folder / "default_config.yaml",
        "default_json_config_file": folder / "default_config.json",
        "default_config_file": default_config_path(),
    }
    if name not in places:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return str(places[name])
