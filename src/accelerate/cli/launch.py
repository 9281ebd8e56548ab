"""``accelerate launch``: from a command line to running processes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from accelerate import env
from accelerate.cli.parser import build_launch_parser
from accelerate.config.files import find_config_file
from accelerate.config.resolve import Resolved, resolve
from accelerate.errors import AccelerateError
from accelerate.launch.base import Job, LaunchPlan
from accelerate.launch.hardware import Devices, detect, usable_cores
from accelerate.launch.program import check_program
from accelerate.launch.registry import choose

__all__ = ["job_of", "launch_command", "launch_command_parser", "main", "plan_of"]


def launch_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """A parser with every launch flag; with ``subparsers`` it is added there as the command ``launch``."""
    if subparsers is None:
        return build_launch_parser()
    parser: argparse.ArgumentParser = subparsers.add_parser("launch", allow_abbrev=False)
    build_launch_parser(parser)
    parser.set_defaults(func=launch_command)
    return parser


def job_of(
    args: argparse.Namespace,
    *,
    in_place: bool = False,
    environ: Mapping[str, str] | None = None,
    devices: Devices | None = None,
) -> tuple[Job, Resolved]:
    """What a parsed command line asks for, with the configuration file and the environment behind it.

    ``environ`` and ``devices`` are this process's and this machine's unless they are given.

    Raises:
        ConfigError: a setting is wrong, unknown or contradicts another.
    """
    environ = env.snapshot() if environ is None else environ
    resolved = resolve(args, environ, find_config_file(getattr(args, "config_file", None)))
    config = resolved.config
    job = Job(
        config=config,
        program=args.training_script,
        arguments=tuple(args.training_script_args),
        module=config.module,
        python=not config.no_python,
        environment=resolved.environment(),
        given={path: source.where for path, source in resolved.explain()},
        in_place=in_place,
        devices=detect(environ) if devices is None else devices,
        cores=usable_cores(),
        environ=environ,
    )
    return job, resolved


def plan_of(job: Job) -> LaunchPlan:
    """What would be started for ``job``. Starts nothing.

    Raises:
        LaunchError: the settings cannot be met together.
        NotBuiltError: they ask for something that is not there yet.
    """
    return choose(job).plan(job)


def _launch(args: argparse.Namespace, *, in_place: bool) -> int:
    job, resolved = job_of(args, in_place=in_place)
    launcher = choose(job)
    plan = launcher.plan(job)
    if job.config.dry_run:
        print(_dry(plan))
        return 0
    check_program(job.program, module=job.module, python=job.python)
    if not job.config.quiet:
        for notice in (*resolved.notices, *plan.notices):
            print(f"accelerate launch: {notice}", file=sys.stderr, flush=True)
    return launcher.run(plan)


def _dry(plan: LaunchPlan) -> str:
    lines = [plan.description]
    lines += [f"  {name}={value}" for name, value in sorted(plan.environment.items()) if value is not None]
    if plan.rendezvous is not None:
        lines.append(f"  meeting: {plan.rendezvous.backend} at {plan.rendezvous.endpoint.removesuffix(':0')}")
    lines += [f"  notice: {notice}" for notice in plan.notices]
    return "\n".join(lines if plan.script is None else [*lines, "", plan.script.rstrip()])


def launch_command(args: argparse.Namespace) -> None:
    """Runs a parsed command line in processes of their own and returns when they have ended well.

    Raises:
        SystemExit: they failed; its code is theirs. What failed has been shown.
        AccelerateError: they could not be started.
    """
    code = _launch(args, in_place=False)
    if code:
        raise SystemExit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``accelerate launch`` with these words (``sys.argv`` by default) and returns the exit code.

    A job of one process runs in this interpreter, where torch was not imported before.
    """
    args = launch_command_parser().parse_args(argv)
    try:
        return _launch(args, in_place="torch" not in sys.modules)
    except AccelerateError as error:
        from accelerate.cli.main import report_error

        return report_error("launch", error)


if __name__ == "__main__":
    sys.exit(main())
