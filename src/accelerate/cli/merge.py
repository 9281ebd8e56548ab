"""``accelerate merge-weights``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate.cli.base import new_parser, run
from accelerate.errors import ConfigError

__all__ = ["main", "merge_command", "merge_command_parser"]


def merge_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """The parser of ``accelerate merge-weights``; with ``subparsers`` it is added there."""
    parser = new_parser("merge-weights", "Turn a checkpoint of FSDP or DeepSpeed into one set of weights.", subparsers)
    parser.add_argument(
        "checkpoint_directory", help="The folder with the shards, such as pytorch_model_fsdp_0, or the checkpoint."
    )
    parser.add_argument("output_path", help="The folder that the weights are written to.")
    parser.add_argument(
        "--unsafe_serialization",
        "--unsafe-serialization",
        action="store_true",
        help="Write a pickle (pytorch_model.bin) instead of safetensors.",
    )
    parser.add_argument(
        "--remove_checkpoint_dir",
        "--remove-checkpoint-dir",
        action="store_true",
        help="Remove the shards once the weights are written.",
    )
    parser.add_argument(
        "--max_shard_size",
        "--max-shard-size",
        default=None,
        metavar="SIZE",
        help="Write several files of at most this size, such as 5GB. Default: one file.",
    )
    if subparsers is not None:
        parser.set_defaults(func=merge_command)
    return parser


def merge_command(args: argparse.Namespace) -> int:
    """Merges the shards of a parsed command line and returns 0.

    Raises:
        CheckpointError: the folder does not hold shards.
    """
    from accelerate.strategies.deepspeed.folders import engine_at

    path, safe = Path(args.checkpoint_directory), not args.unsafe_serialization
    engine = engine_at(path)
    if engine is not None:
        from accelerate.checkpoint.files import ONE_FILE, write_model
        from accelerate.strategies.deepspeed.universal import zero_to_fp32

        if args.remove_checkpoint_dir:
            raise ConfigError(
                f"--remove_checkpoint_dir was given, and {path} is DeepSpeed's, which also holds what training goes on "
                "from. Remove it yourself once the weights are written."
            )
        write_model(zero_to_fp32(*engine), args.output_path, max_shard_size=args.max_shard_size or ONE_FILE, safe=safe)
        print(f"The weights are in {args.output_path}.")
        return 0
    from accelerate.strategies.sharded.merge import merge

    merge(
        args.checkpoint_directory,
        args.output_path,
        safe=safe,
        remove=args.remove_checkpoint_dir,
        max_shard_size=getattr(args, "max_shard_size", None),
    )
    print(f"The weights are in {args.output_path}.")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``accelerate merge-weights`` on ``argv`` (``sys.argv`` by default) and returns the exit code."""
    return run("merge-weights", merge_command_parser(), merge_command, argv)


if __name__ == "__main__":
    sys.exit(main())
