"""DeepSpeed's own configuration as a tree that is asked by dotted keys."""

from __future__ import annotations

import base64
import binascii
import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate.config.kinds import BOOLEAN
from accelerate.errors import ConfigError

__all__ = ["HfDeepSpeedConfig", "fill_match", "process", "read_json"]


def read_json(source: Any) -> dict[str, Any]:
    """A copy of a dictionary, or what a path, JSON text or base64 text holds.

    Raises:
        ConfigError: it is none of these.
    """
    if isinstance(source, Mapping):
        return copy.deepcopy(dict(source))
    if not isinstance(source, (str, Path)):
        raise ConfigError(
            f"A DeepSpeed configuration is a dictionary, a path or JSON text, not {type(source).__name__}: {source!r}."
        )
    text = str(source)
    try:
        if len(text) < 4096 and Path(text).expanduser().is_file():
            text = Path(text).expanduser().read_text(encoding="utf-8")
        elif not text.lstrip().startswith("{"):
            text = base64.urlsafe_b64decode(text).decode("utf-8")
        found = json.loads(text)
    except (binascii.Error, UnicodeDecodeError, json.JSONDecodeError, OSError) as error:
        raise ConfigError(
            f"{str(source)[:200]!r} is no DeepSpeed configuration: no such file, and neither JSON nor base64 of it "
            f"({error})."
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(f"{str(source)[:200]!r} holds {type(found).__name__} instead of a JSON object.")
    return found


class HfDeepSpeedConfig:
    """A DeepSpeed configuration. ``config`` is the dictionary, which owners may change in place.

    A dictionary that is passed in is copied.
    """

    def __init__(self, config_file_or_dict: Any) -> None:
        self.config: dict[str, Any] = read_json(config_file_or_dict)
        self.set_stage_and_offload()

    def set_stage_and_offload(self) -> None:
        """Reads the ZeRO stage and whether anything is offloaded, after ``config`` was changed."""
        self._stage = self.get_value("zero_optimization.stage", -1)
        parts = ("offload_optimizer", "offload_param")
        devices = {self.get_value(f"zero_optimization.{part}.device") for part in parts}
        self._offload = bool(self.is_zero2() or self.is_zero3()) and bool(devices & {"cpu", "nvme"})

    def find_config_node(self, ds_key_long: str) -> tuple[dict[str, Any] | None, str]:
        """(dictionary, last key) of a dotted key; the dictionary is None where the way ends early."""
        *way, last = ds_key_long.split(".")
        node: Any = self.config
        for part in way:
            node = node.get(part) if isinstance(node, dict) else None
        return (node if isinstance(node, dict) else None), last

    def get_value(self, ds_key_long: str, default: Any = None) -> Any:
        """The value of a dotted key, or ``default``."""
        node, key = self.find_config_node(ds_key_long)
        return default if node is None else node.get(key, default)

    def set_value(self, ds_key_long: str, value: Any) -> None:
        """Sets a dotted key; dictionaries on the way are made."""
        *way, last = ds_key_long.split(".")
        node = self.config
        for part in way:
            node = node.setdefault(part, {})
        node[last] = value

    def del_config_sub_tree(self, ds_key_long: str, must_exist: bool = False) -> None:
        """Removes a dotted key with all below it.

        Raises:
            ConfigError: ``must_exist``, and it is not there.
        """
        node, key = self.find_config_node(ds_key_long)
        if node is not None and key in node:
            del node[key]
        elif must_exist:
            raise ConfigError(f"{ds_key_long} is not in this DeepSpeed configuration: {self.config}")

    def _truth(self, ds_key_long: str) -> bool | None:
        value = self.get_value(ds_key_long)
        return None if value is None else bool(BOOLEAN(value)) if isinstance(value, str) else bool(value)

    def is_true(self, ds_key_long: str) -> bool:
        """Whether a dotted key is there and true."""
        return self._truth(ds_key_long) is True

    def is_false(self, ds_key_long: str) -> bool:
        """Whether a dotted key is there and false."""
        return self._truth(ds_key_long) is False

    def is_zero2(self) -> bool:
        """Whether gradients are sharded (and parameters are not)."""
        return bool(self._stage == 2)

    def is_zero3(self) -> bool:
        """Whether parameters are sharded."""
        return bool(self._stage == 3)

    def is_offload(self) -> bool:
        """Whether optimizer state or parameters are kept outside the device."""
        return self._offload


def fill_match(
    tree: HfDeepSpeedConfig, ds_key_long: str, mismatches: list[str], must_match: bool, values: Mapping[str, Any]
) -> None:
    """Puts ``values[ds_key_long]`` where the tree says "auto"; elsewhere notes a difference in ``mismatches``.

    Raises:
        ConfigError: the tree says "auto" and ``values`` has nothing for it.
    """
    node, key = tree.find_config_node(ds_key_long)
    if node is None or node.get(key) is None:
        return
    current = node[key]
    if current == "auto":
        if ds_key_long not in values:
            raise ConfigError(
                f'`{ds_key_long}` is "auto" in the DeepSpeed configuration, and nothing here says what it should be. '
                "Set it there, or pass it."
            )
        node[key] = values[ds_key_long]
    elif must_match and ds_key_long in values and values[ds_key_long] is not None and current != values[ds_key_long]:
        mismatches.append(f"- {ds_key_long}: {current} in the DeepSpeed configuration, {values[ds_key_long]} elsewhere")


def process(
    tree: HfDeepSpeedConfig, prefix: str, mismatches: list[str], node: Any, must_match: bool, values: Mapping[str, Any]
) -> None:
    """:func:`fill_match` for every leaf below ``node``."""
    for key, value in list(node.items()):
        if isinstance(value, dict):
            process(tree, f"{prefix}{key}.", mismatches, value, must_match, values)
        else:
            fill_match(tree, f"{prefix}{key}", mismatches, must_match, values)
