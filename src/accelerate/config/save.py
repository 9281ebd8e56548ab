"""Configurations written to files that other tools read too."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate.config.fields import Setting
from accelerate.config.run import RunConfig, all_settings
from accelerate.config.sources import active_sections

__all__ = ["section_of", "text_of", "to_mapping", "to_yaml", "value_at", "write"]

ALWAYS = (
    "compute_environment",
    "debug",
    "distributed_type",
    "tpu_settings.downcast_bf16",
    "enable_cpu_affinity",
    "machine_rank",
    "tpu_settings.main_training_function",
    "mixed_precision",
    "num_machines",
    "num_processes",
    "rdzv_backend",
    "same_network",
    "cpu",
)
"""Settings that a file always names, as readers of such files expect."""

SWITCHES = ("FSDP", "use_fsdp"), ("DEEPSPEED", "use_deepspeed"), ("MEGATRON_LM", "use_megatron_lm"), ("XLA", "tpu")


def section_of(item: Setting) -> str:
    """The attribute of RunConfig that holds a setting's section, or nothing for the top level."""
    return item.path.partition(".")[0] if "." in item.path else ""


def value_at(config: RunConfig, path: str) -> Any:
    """The value of a setting."""
    value: Any = config
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _distributed_type(config: RunConfig) -> str:
    for word, name in SWITCHES:
        if getattr(config, name):
            return word
    if config.cpu:
        several = (config.num_processes or 1) > 1 or config.machine_range[1] > 1
        return "MULTI_CPU" if several else "NO"
    if config.distributed_type is not None and config.distributed_type.startswith("MULTI_"):
        return config.distributed_type
    return "MULTI_GPU" if config.multi_gpu else "NO"


def to_mapping(config: RunConfig) -> dict[str, Any]:
    """The content of a file: what is always named, and what differs from its default in sections in force."""
    active = active_sections(config)
    found: dict[str, Any] = {}
    for item in all_settings():
        value, keys = value_at(config, item.path), item.yaml
        section = section_of(item)
        if keys is None:
            if item.path in ("gradient_accumulation_steps", "num_cpu_threads_per_process"):
                keys = (item.path,)
            else:
                continue
        if item.path == "distributed_type":
            value = _distributed_type(config)
        elif item.path in ("mixed_precision", "tpu_settings.downcast_bf16"):
            value = value or "no"
        elif item.path not in ALWAYS and not _worth_saying(item, value, section, active):
            continue
        if item.path in ("gradient_accumulation_steps", "gradient_clipping") and "deepspeed" not in active:
            keys = keys[-1:]
        if item.path == "num_processes" and value is None:
            continue
        _put(found, keys, _plain(value))
    return found


def _worth_saying(item: Setting, value: Any, section: str, active: frozenset[str]) -> bool:
    if value is None or value == item.option.default:
        return False
    return not section or section in active or section in ("tpu_settings", "dynamo")


def _put(found: dict[str, Any], keys: tuple[str, ...], value: Any) -> None:
    node = found
    for key in keys[:-1]:
        node = node.setdefault(key, {})
    node[keys[-1]] = value


def _comments() -> Mapping[tuple[str, ...], str]:
    return {item.yaml: item.option.help for item in all_settings() if item.yaml}


def to_yaml(mapping: Mapping[str, Any], *, comments: bool = True) -> str:
    """YAML of a file's content, keys in order of the alphabet, each with what it means."""
    import yaml

    helps = _comments() if comments else {}
    lines: list[str] = []

    def add(keys: tuple[str, ...], value: Any, indent: str) -> None:
        if isinstance(value, Mapping) and keys in sections:
            lines.append(f"{indent}{keys[-1]}:")
            for key in sorted(value):
                add((*keys, key), value[key], indent + "  ")
            return
        text = yaml.safe_dump({keys[-1]: value}, default_flow_style=False, width=1000).rstrip("\n")
        lines.extend(f"{indent}{line}" for line in text.split("\n"))
        if keys in helps and "\n" not in text:
            lines[-1] = f"{lines[-1]}  # {helps[keys]}"

    sections = {(item.yaml[0],) for item in all_settings() if item.yaml and len(item.yaml) == 2}
    for key in sorted(mapping):
        add((key,), mapping[key], "")
    return "\n".join(lines) + "\n"


def text_of(config: RunConfig | Mapping[str, Any], path: Path, *, comments: bool = True) -> str:
    """What :func:`write` would write to ``path``: YAML, or JSON where the name ends so."""
    mapping = to_mapping(config) if isinstance(config, RunConfig) else dict(config)
    if path.suffix == ".json":
        return json.dumps(mapping, indent=2, sort_keys=True) + "\n"
    return to_yaml(mapping, comments=comments)


def write(config: RunConfig | Mapping[str, Any], path: str | Path, *, comments: bool = True) -> Path:
    """Writes a configuration to a file, with the folders it needs: the whole of it, or nothing is changed."""
    path = Path(path).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    text = text_of(config, path, comments=comments)
    # A link stays a link: what it leads to is replaced.
    target = path.resolve()
    draft = target.with_name(f".{target.name}.draft-{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, target)
    return path
