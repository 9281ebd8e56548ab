"""Names of files and folders of a checkpoint, as other libraries expect them."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = [
    "CHECKPOINTS",
    "SAFE_WEIGHTS_NAME",
    "WEIGHTS_NAME",
    "checkpoint_name",
    "checkpoint_number",
    "custom_name",
    "engine_folder",
    "index_name",
    "indexed",
    "is_divided",
    "looks_like_checkpoint",
    "model_folder",
    "model_name",
    "numbered",
    "optimizer_folder",
    "rng_name",
    "shard_pattern",
    "whole_name",
]

CHECKPOINTS = "checkpoints"
SAFE_WEIGHTS_NAME = "model.safetensors"
WEIGHTS_NAME = "pytorch_model.bin"
_NUMBERED = re.compile(r"checkpoint_(\d+)")


def checkpoint_name(number: int) -> str:
    """The folder of a checkpoint with automatic naming, below ``<project_dir>/checkpoints``."""
    return f"checkpoint_{number}"


def checkpoint_number(name: str) -> int | None:
    """The number in such a name; None for any other name."""
    found = _NUMBERED.fullmatch(name)
    return int(found.group(1)) if found else None


def numbered(name: str, index: int) -> str:
    """``name`` for the object at ``index``: the first has none, then ``_1``, ``_2``, … before the suffix."""
    if index == 0:
        return name
    stem, dot, suffix = name.partition(".")
    return f"{stem}_{index}{dot}{suffix}"


def indexed(folder: Path, name: str) -> list[tuple[int, Path]]:
    """(index, path) of what there is in ``folder`` under ``name`` and its numbered forms, by index."""
    stem, dot, suffix = name.partition(".")
    pattern = re.compile(re.escape(stem) + r"(?:_(\d+))?" + re.escape(dot + suffix))
    found = ((pattern.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted((int(match.group(1) or 0), path) for match, path in found if match)


def model_name(index: int, *, safe: bool = True) -> str:
    """The file of the model at ``index``."""
    return numbered(SAFE_WEIGHTS_NAME if safe else WEIGHTS_NAME, index)


def shard_pattern(name: str) -> str:
    """The pattern of huggingface_hub for the shards of ``name``, as in ``model-00001-of-00002.safetensors``."""
    stem, dot, suffix = name.partition(".")
    return f"{stem}{{suffix}}{dot}{suffix}"


def index_name(name: str) -> str:
    """The file that says which shard of ``name`` holds which tensor."""
    return f"{name}.index.json"


def whole_name(index: int) -> str:
    """The file of the model at ``index`` where a divided one was brought together."""
    return numbered("pytorch_model_fsdp.bin", index)


def model_folder(index: int) -> str:
    """The folder of the parts of the model at ``index``."""
    return f"pytorch_model_fsdp_{index}"


def optimizer_folder(index: int) -> str:
    """The folder of the parts of the optimizer at ``index``."""
    return f"optimizer_{index}"


def engine_folder(index: int) -> str:
    """The folder in which an engine keeps the model at ``index``."""
    return "pytorch_model" if index == 0 else f"pytorch_model_{index}"


def rng_name(rank: int) -> str:
    """The file of the random generators of ``rank``."""
    return f"random_states_{rank}.pkl"


def custom_name(index: int) -> str:
    """The file of the registered object at ``index``."""
    return f"custom_checkpoint_{index}.pkl"


def is_divided(path: Path) -> bool:
    """Whether ``path`` is a folder in which ranks have written their parts."""
    return (path / ".metadata").is_file()


def looks_like_checkpoint(folder: Path) -> bool:
    """Whether a folder without a manifest holds what a checkpoint of the same layout holds."""
    if not folder.is_dir():
        return False
    known = re.compile(
        r"(model|pytorch_model|optimizer|scheduler|random_states|custom_checkpoint|sampler|dl_state_dict)"
        r"(_fsdp)?(_\d+)?(-\d+-of-\d+)?(\.(safetensors|bin|pkl|pt))?"
    )
    return any(known.fullmatch(path.name) for path in folder.iterdir())
