"""``accelerate config``, under the path that others import it from."""

from __future__ import annotations

from accelerate import lazy

HOMES = {
    "accelerate.cli.config": "config_command config_parser main",
    "accelerate.config.places": "default_config_file",
    "accelerate.config.records": "load_config_from_file",
}

__getattr__, __dir__, __all__ = lazy.attach(__name__, lazy.by_name(HOMES), ("config_args", "default"))
