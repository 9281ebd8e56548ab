"""Configuration files: read (every age of them, and DeepSpeed's own JSON), checked key by key, and written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from accelerate import env
from accelerate.config.fields import Setting
from accelerate.config.run import all_settings
from accelerate.errors import ConfigError, UnknownKeyError

__all__ = [
    "ConfigFile",
    "Entry",
    "cache_directory",
    "default_config_path",
    "find_config_file",
    "is_deepspeed_config",
    "read_config_file",
    "read_raw",
]

DROPPED = {
    ("ipex_config",): "support for ipex ended",
    ("use_xpu",): "devices are found by themselves",
    ("use_ipex",): "support for ipex ended",
    ("mpirun_config", "mpirun_ccl"): "support for oneCCL settings ended",
}
"""Keys of earlier releases that mean nothing any more, and why."""

DEEPSPEED_KEYS = frozenset(
    {
        "zero_optimization",
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "optimizer",
        "scheduler",
        "fp16",
        "bf16",
        "zero_allow_untested_optimizer",
        "steps_per_print",
        "wall_clock_breakdown",
        "activation_checkpointing",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A value of a file, the key as the file spells it, and its line (None where the format does not tell)."""

    key: str
    value: Any
    line: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """A configuration file that was read: its values by setting path, and what is to be said about it."""

    path: Path
    values: Mapping[str, Entry]
    notices: tuple[str, ...] = ()
    deepspeed: bool = False

    def where(self, entry: Entry) -> str:
        """``file:line`` of an entry."""
        return f"{self.path}:{entry.line}" if entry.line else str(self.path)


# ---- where files are


def cache_directory() -> Path:
    """The folder of Accelerate in Hugging Face's cache; ``HF_HOME`` and ``XDG_CACHE_HOME`` are honoured."""
    home = env.get("HF_HOME")
    if not home:
        home = str(Path(env.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return Path(home).expanduser() / "accelerate"


def default_config_path() -> Path:
    """The file that `accelerate config` writes unless told otherwise: a JSON file if only that one exists."""
    folder = cache_directory()
    yaml_file, json_file = folder / "default_config.yaml", folder / "default_config.json"
    return json_file if json_file.is_file() and not yaml_file.is_file() else yaml_file


def find_config_file(given: str | Path | None) -> Path | None:
    """The file to use: ``given``, else the default one where it exists, else None.

    Raises:
        ConfigError: ``given`` does not exist.
    """
    if given is None:
        path = default_config_path()
        return path if path.is_file() else None
    path = Path(given).expanduser()
    if not path.is_file():
        import difflib

        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*")], n=1)
        hint = f" Did you mean {path.parent / near[0]}?" if near else " `accelerate config` writes one."
        raise ConfigError(f"Configuration file {path} does not exist.{hint}")
    return path


# ---- reading


def read_raw(path: Path) -> dict[str, Any]:
    """The content of a YAML or JSON file as it is."""
    import json

    import yaml

    text = path.read_text(encoding="utf-8")
    data = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a configuration file is a mapping of keys to values.")
    return data


def _leaves(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, int]]:
    """Keys of a composed YAML mapping with the nodes of their values and their lines, from 1."""
    for key, value in node.value:
        yield (*path, str(key.value)), value, key.start_mark.line + 1


def _parse(path: Path) -> list[tuple[tuple[str, ...], Any, int | None]]:
    """Key paths (of two parts where a section is a mapping), values and lines of a YAML or JSON file."""
    import yaml

    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json" and "\t" in text:  # YAML takes JSON, but for tabs
        import json

        return [(keys, value, None) for keys, value in _flatten(json.loads(text), path)]
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return []
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(f"{path}: a configuration file is a mapping of keys to values.")
        found: list[tuple[tuple[str, ...], Any, int | None]] = []
        for keys, node, line in _leaves(root):
            if isinstance(node, yaml.MappingNode) and keys[0] in _section_keys():
                for inner, leaf, inner_line in _leaves(node, keys):
                    found.append((inner, loader.construct_object(leaf, deep=True), inner_line))
            else:
                found.append((keys, loader.construct_object(node, deep=True), line))
        return found
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} cannot be read as YAML: {error}") from error
    finally:
        loader.dispose()


def _flatten(data: Any, path: Path) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a configuration file is a mapping of keys to values.")
    for key, value in data.items():
        if isinstance(value, dict) and key in _section_keys():
            for inner, leaf in value.items():
                yield (str(key), str(inner)), leaf
        else:
            yield (str(key),), value


@cache
def _section_keys() -> frozenset[str]:
    found = {item.yaml[0] for item in all_settings() if item.yaml and len(item.yaml) == 2}
    return frozenset(found | {"ipex_config"})


@cache
def _index() -> dict[tuple[str, ...], Setting]:
    """Settings by the key paths that stand for them; a present name goes before an old one."""
    index: dict[tuple[str, ...], Setting] = {}
    for item in all_settings():
        if item.yaml:
            index[item.yaml] = item
    for item in all_settings():
        for alias in item.yaml_aliases:
            index.setdefault(alias, item)
    return index


def is_deepspeed_config(keys: set[str]) -> bool:
    """Whether a file with these top-level keys is DeepSpeed's own configuration and not one of ours."""
    ours = {path[0] for path in _index()} - {"gradient_accumulation_steps", "gradient_clipping"}
    return bool(keys & DEEPSPEED_KEYS) and not keys & ours


def read_config_file(path: str | Path) -> ConfigFile:
    """The settings of a file: YAML or JSON of any release, or DeepSpeed's JSON, which is taken as a whole.

    Raises:
        UnknownKeyError: keys that no setting owns, all of them, with lines and the nearest known keys.
        ConfigError: the file cannot be read, or says the same thing twice in different words.
    """
    path = Path(path)
    found = _parse(path)
    if is_deepspeed_config({keys[0] for keys, _, _ in found}):
        return _read_deepspeed(path, {keys[0]: (value, line) for keys, value, line in found})
    values: dict[str, Entry] = {}
    notices: list[str] = []
    unknown: list[tuple[tuple[str, ...], int | None]] = []
    for keys, value, line in found:
        if keys in DROPPED or keys[:1] in DROPPED:
            reason = DROPPED.get(keys) or DROPPED[keys[:1]]
            notices.append(f"{path}:{line}: `{'.'.join(keys)}` is left out ({reason}).")
            continue
        if len(keys) == 1 and keys[0] in _section_keys() and not value:
            continue  # an empty section
        known = keys
        if keys == ("fp16",) and isinstance(value, bool):
            known, value = ("mixed_precision",), "fp16" if value else "no"
        item = _index().get(known)
        if item is None:
            unknown.append((keys, line))
            continue
        _take(values, item.path, Entry(key=".".join(keys), value=value, line=line), path)
    if unknown:
        raise UnknownKeyError(_unknown_message(path, unknown))
    return ConfigFile(path=path, values=values, notices=tuple(notices))


def _take(values: dict[str, Entry], name: str, entry: Entry, path: Path) -> None:
    before = values.get(name)
    if before is not None and before.value is not None and entry.value is not None and before.value != entry.value:
        raise ConfigError(
            f"{path} says two things about one setting: `{before.key}: {before.value}` on line {before.line} and "
            f"`{entry.key}: {entry.value}` on line {entry.line}. Remove one of them."
        )
    if before is None or before.value is None:
        values[name] = entry


def _unknown_message(path: Path, unknown: list[tuple[tuple[str, ...], int | None]]) -> str:
    import difflib

    lines = [f"{path} has {'a key' if len(unknown) == 1 else f'{len(unknown)} keys'} that no setting owns:"]
    for keys, line in unknown:
        known = [".".join(other) for other in _index() if len(keys) == 1 or other[0] == keys[0]]
        names = {other.rpartition(".")[2]: other for other in known}
        near = difflib.get_close_matches(keys[-1].lower(), names, n=1, cutoff=0.72)
        hint = f" Did you mean `{names[near[0]]}`?" if near else ""
        lines.append(f"  {f'line {line}: ' if line else ''}`{'.'.join(keys)}`{hint}")
    lines.append("Correct or remove them; `accelerate config validate FILE` checks a file.")
    return "\n".join(lines)


def _read_deepspeed(path: Path, found: Mapping[str, tuple[Any, int | None]]) -> ConfigFile:
    def entry(key: str, value: Any) -> Entry:
        return Entry(key=key, value=value, line=found[key][1] if key in found else None)

    values = {
        "use_deepspeed": entry("zero_optimization", True),
        "deepspeed.deepspeed_config_file": entry("zero_optimization", str(path)),
    }
    for mode in ("fp16", "bf16"):
        section = found.get(mode, (None, None))[0]
        if isinstance(section, dict) and section.get("enabled") is True:
            values["mixed_precision"] = entry(mode, mode)
    return ConfigFile(
        path=path,
        values=values,
        deepspeed=True,
        notices=(f"{path} is a DeepSpeed configuration: training with DeepSpeed, and this file as its JSON.",),
    )
