"""``accelerate to-fsdp2``: a configuration file for FSDP1 rewritten for FSDP2."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate.cli.base import new_parser, run
from accelerate.config.files import default_config_path, find_config_file, read_config_file, read_raw
from accelerate.config.save import write
from accelerate.errors import ConfigError

__all__ = ["converted", "main", "to_fsdp2_command", "to_fsdp2_command_parser"]

# What each way of sharding becomes: whether parameters are freed again after the forward pass.
_RESHARD = {"FULL_SHARD": True, "SHARD_GRAD_OP": False, "HYBRID_SHARD": True, "HYBRID_SHARD_ZERO2": False}
_NUMBERED = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
# Settings that FSDP2 has no use for, and why.
_GONE = {
    "backward_prefetch": "FSDP2 prefetches by itself",
    "forward_prefetch": "FSDP2 prefetches by itself",
    "use_orig_params": "FSDP2 always keeps the original parameters",
    "sync_module_states": "FSDP2 starts from the first process's weights when loading is RAM efficient",
}


def to_fsdp2_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """The parser of ``accelerate to-fsdp2``; with ``subparsers`` it is added there."""
    parser = new_parser("to-fsdp2", "Rewrite a configuration file for FSDP1 into one for FSDP2.", subparsers)
    parser.add_argument(
        "--config_file", "--config-file", default=None, metavar="FILE", help="The file. Default: the one launches read."
    )
    parser.add_argument("--overwrite", action="store_true", help="Write to that file itself.")
    parser.add_argument(
        "--output_file", "--output-file", default=None, metavar="FILE", help="Write to this file instead."
    )
    if subparsers is not None:
        parser.set_defaults(func=to_fsdp2_command)
    return parser


def converted(raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The content of a file for FSDP1 as one for FSDP2, and what changed in meaning or was left out.

    Raises:
        ConfigError: it is not for FSDP1, or its way of sharding does not exist in FSDP2.
    """
    found = dict(raw)
    if found.get("distributed_type") != "FSDP":
        raise ConfigError(f"It has `distributed_type: {found.get('distributed_type')}`; only a file for FSDP converts.")
    old = {key.removeprefix("fsdp_"): value for key, value in (found.get("fsdp_config") or {}).items()}
    if str(old.get("version", 1)) == "2":
        raise ConfigError("It is for FSDP2 already (`fsdp_version: 2`).")
    new: dict[str, Any] = {}
    notes = []
    for key, value in old.items():
        if key in _GONE:
            notes.append(f"fsdp_{key} is left out: {_GONE[key]}.")
        elif key == "sharding_strategy":
            new["reshard_after_forward"] = _reshard(str(value), notes)
        elif key == "reshard_after_forward" and isinstance(value, str) and value.upper() in _NUMBERED:
            new[key] = _reshard(value, notes)
        elif key == "state_dict_type" and value == "LOCAL_STATE_DICT":
            new[key] = "SHARDED_STATE_DICT"
            notes.append("fsdp_state_dict_type LOCAL_STATE_DICT becomes SHARDED_STATE_DICT, which FSDP2 has instead.")
        else:
            new[key] = value
    new.setdefault("reshard_after_forward", True)
    new["version"] = 2
    found["fsdp_config"] = {f"fsdp_{key}": value for key, value in sorted(new.items())}
    return found, notes


def _reshard(word: str, notes: list[str]) -> bool:
    name = _NUMBERED[int(word) - 1] if word.isdigit() and 1 <= int(word) <= len(_NUMBERED) else word.upper()
    if name not in _RESHARD:
        raise ConfigError(
            f"It has fsdp_sharding_strategy {word}, which FSDP2 cannot do. For {name}, use `distributed_type: "
            "MULTI_GPU` (plain data parallelism), or choose a strategy that shards first."
        )
    if name.startswith("HYBRID"):
        notes.append(
            f"{name} shards within a machine: set parallelism_config_dp_replicate_size to the number of machines and "
            "parallelism_config_dp_shard_size to the devices of each."
        )
    return _RESHARD[name]


def to_fsdp2_command(args: argparse.Namespace) -> int:
    """Converts the file of a parsed command line and returns 0.

    Raises:
        ConfigError: it cannot be converted, or nothing says where to write.
    """
    source = find_config_file(args.config_file)
    if source is None:
        raise ConfigError(f"There is no configuration at {default_config_path()}; name a file with --config_file.")
    if not args.overwrite and not args.output_file:
        raise ConfigError(
            f"Say where to write: --overwrite changes {source} itself, --output_file FILE writes another."
        )
    read_config_file(source)
    try:
        content, notes = converted(read_raw(source))
    except ConfigError as error:
        raise ConfigError(f"{source} cannot be converted. {error}") from None
    target = write(content, Path(args.output_file) if args.output_file else source)
    for note in notes:
        print(note)
    print(f"Written to {target}.")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``accelerate to-fsdp2`` on ``argv`` (``sys.argv`` by default) and returns the exit code."""
    return run("to-fsdp2", to_fsdp2_command_parser(), to_fsdp2_command, argv)


if __name__ == "__main__":
    sys.exit(main())
