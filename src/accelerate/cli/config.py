"""``accelerate config``: write, change, check and explain configurations."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from accelerate import env
from accelerate.cli.config_basic import detected_config, write_basic_config
from accelerate.cli.parser import HelpFormatter, build_launch_parser
from accelerate.config.assign import namespace_of
from accelerate.config.files import default_config_path, find_config_file, read_config_file
from accelerate.config.resolve import resolve
from accelerate.config.run import RunConfig
from accelerate.config.save import write
from accelerate.errors import AccelerateError, ConfigError
from accelerate.launch.hardware import detect

__all__ = ["config_command", "config_parser", "main"]

COMMANDS = ("default", "update", "validate", "explain")


def _places(parser: argparse.ArgumentParser, *, file: str = "--config_file") -> None:
    parser.add_argument(
        file,
        *([file.replace("_", "-")] if file.startswith("--") else []),
        default=None,
        metavar="FILE",
        help="The configuration file. Default: the one that launches read.",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="assignments",
        help="Set a setting by its flag, file key or path; may be repeated.",
    )


def config_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """The parser of ``accelerate config`` with its commands; with ``subparsers`` it is added there."""
    about = "Write a configuration file: by questions in a terminal, else from\nthis machine and --set."
    kwargs: dict[str, Any] = {"description": about, "formatter_class": HelpFormatter, "allow_abbrev": False}
    if subparsers is None:
        usage = "accelerate config [options] [command]"
        parser = argparse.ArgumentParser("accelerate config", usage=usage, **kwargs)
    else:
        parser = subparsers.add_parser("config", **kwargs)
    _places(parser)
    parser.add_argument("--yes", action="store_true", help="Do not ask: take what this machine has, and --set.")
    commands = parser.add_subparsers(dest="command", metavar="", title="commands", prog="accelerate config")

    def command(name: str, help: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=help, **{**kwargs, "description": help})

    default = command("default", "Write the configuration of this machine.")
    _places(default)
    default.add_argument("--mixed_precision", "--mixed-precision", default="no", choices=["no", "fp16", "bf16", "fp8"])
    default.add_argument("--overwrite", action="store_true", help="Also where there is a file already.")
    update = command("update", "Rewrite a file in today's form, with --set applied.")
    _places(update)
    validate = command("validate", "Check a file: keys, values, contradictions.")
    validate.add_argument("file", nargs="?", default=None, help="The file. Default: the one that launches read.")
    explain = commands.add_parser(
        "explain", help="Show each value of a launch and where it came from.", add_help=False, **kwargs
    )
    explain.add_argument("arguments", nargs=argparse.REMAINDER)
    parser.set_defaults(func=config_command)
    return parser


def _resolved(file: Path | None, assignments: Sequence[str]) -> RunConfig:
    return resolve(namespace_of(assignments), {}, file).config


def _say_written(path: Path) -> int:
    print(f"Configuration written to {path}. `accelerate config explain` shows what it means.")
    return 0


def _from_machine(assignments: Sequence[str], mixed_precision: str = "no") -> RunConfig:
    """This machine's configuration with ``assignments`` on top."""
    base = detected_config(mixed_precision)
    config = _resolved(None, assignments)
    said = {word.partition("=")[0] for word in assignments}
    kept: dict[str, Any] = {}
    for name in ("num_processes", "gpu_ids", "mixed_precision"):
        if getattr(config, name) is None:
            kept[name] = getattr(base, name)
    plain = not (config.use_fsdp or config.use_deepspeed or config.use_megatron_lm or config.tpu or config.cpu)
    if plain and "distributed_type" not in said and config.num_processes in (None, base.num_processes):
        kept.update(multi_gpu=base.multi_gpu, distributed_type=config.distributed_type or base.distributed_type)
    if config.cpu:
        kept["gpu_ids"] = None
    return replace(config, **kept)


def _write(args: argparse.Namespace) -> int:
    path = Path(args.config_file).expanduser() if args.config_file else default_config_path()
    if not args.yes and not args.assignments and sys.stdin.isatty() and sys.stdout.isatty():
        from accelerate.cli.questions import ask

        config = ask(detected_config(), detect(env.snapshot()))
        if config is None:
            print("Nothing was written.", file=sys.stderr)
            return 1
        return _say_written(write(config, path))
    if not args.yes and not args.assignments:
        print("There is no terminal to ask questions in: taking what this machine has (--set NAME=VALUE changes it).")
    return _say_written(write(_from_machine(args.assignments), path))


def _default(args: argparse.Namespace) -> int:
    path = Path(args.config_file).expanduser() if args.config_file else default_config_path()
    if args.overwrite or args.assignments:
        return _say_written(write(_from_machine(args.assignments, args.mixed_precision), path))
    if path.exists():
        print(f"{path} exists and is left as it is; --overwrite replaces it.")
        return 0
    written = write_basic_config(args.mixed_precision, path)
    return _say_written(written) if written else 1


def _update(args: argparse.Namespace) -> int:
    path = find_config_file(args.config_file)
    if path is None:
        raise ConfigError(f"There is no configuration at {default_config_path()}. `accelerate config` writes one.")
    read = read_config_file(path)
    if read.deepspeed:
        raise ConfigError(f"{path} is DeepSpeed's own configuration, which is not rewritten.")
    resolved = resolve(namespace_of(args.assignments), {}, read)
    for text in resolved.notices:
        print(text, file=sys.stderr)
    return _say_written(write(resolved.config, path))


def _validate(args: argparse.Namespace) -> int:
    path = find_config_file(args.file)
    if path is None:
        raise ConfigError(f"There is no configuration at {default_config_path()}. `accelerate config` writes one.")
    resolved = resolve(None, {}, path)
    for text in resolved.notices:
        print(text)
    print(f"{path} is valid.")
    return 0


def _explain(args: argparse.Namespace) -> int:
    from accelerate.cli.config_explain import as_data, as_text

    words = list(args.arguments)
    parser = build_launch_parser(
        argparse.ArgumentParser(
            "accelerate config explain",
            usage="accelerate config explain [--json] [flags of accelerate launch] [script]",
            formatter_class=HelpFormatter,
            allow_abbrev=False,
        ),
        script_required=False,
    )
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    parsed = parser.parse_args(words)
    resolved = resolve(parsed, env.snapshot(), find_config_file(parsed.config_file))
    started = parsed if parsed.training_script is not None else None
    if parsed.json:
        print(json.dumps(as_data(resolved, started), indent=2))
    else:
        print(as_text(resolved, started))
    return 0


def config_command(args: argparse.Namespace) -> int:
    """Runs one parsed ``accelerate config`` command line and gives its exit code."""
    run = {"default": _default, "update": _update, "validate": _validate, "explain": _explain}.get(args.command, _write)
    try:
        return run(args)
    except AccelerateError as error:
        print(f"accelerate config: {error}", file=sys.stderr)
        return 1


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``accelerate config`` on ``argv`` (``sys.argv`` by default) and gives its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["explain"]:  # its flags are those of `accelerate launch`
        return config_command(argparse.Namespace(command="explain", arguments=words[1:]))
    return config_command(config_parser().parse_args(words))


if __name__ == "__main__":
    sys.exit(main())
