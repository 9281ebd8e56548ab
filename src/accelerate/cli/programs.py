"""Command lines and environments of a launch, for programs that start the processes themselves."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from accelerate import env
from accelerate.cli.launch import job_of, plan_of
from accelerate.errors import NotBuiltError
from accelerate.launch.base import Job
from accelerate.launch.shape import base_environment, shape_of

__all__ = [
    "prepare_deepspeed_cmd_env",
    "prepare_multi_gpu_env",
    "prepare_sagemager_args_inputs",
    "prepare_simple_launcher_cmd_env",
    "prepare_tpu",
]


def _command(job: Job) -> list[str]:
    python = [sys.executable] if job.python else []
    return [*python, *(["-m"] if job.module else []), job.program, *job.arguments]


def _environment(job: Job) -> dict[str, str]:
    values = {**env.snapshot(), **base_environment(job, shape_of(job))}
    return {name: value for name, value in values.items() if value is not None}


def prepare_simple_launcher_cmd_env(args: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """The command of one process and its whole environment, for a parsed launch command line.

    Raises:
        ConfigError: a setting is wrong, unknown or contradicts another.
    """
    job, _ = job_of(args)
    return _command(job), _environment(job)


def prepare_multi_gpu_env(args: argparse.Namespace) -> dict[str, str]:
    """The whole environment that every process of a parsed launch gets, ranks apart.

    Raises:
        ConfigError: a setting is wrong, unknown or contradicts another.
        LaunchError: the numbers of processes, machines and devices do not fit each other.
    """
    return _environment(job_of(args)[0])


def prepare_deepspeed_cmd_env(args: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """The command of one DeepSpeed process and its whole environment, ranks apart; with the hosts of a host file the
    command of DeepSpeed's own runner, which starts them all.

    Raises:
        LaunchError: the numbers of processes and machines do not fit each other.
    """
    job, _ = job_of(args)
    plan = plan_of(job)
    command = list(plan.argv) if plan.kind == "deepspeed" else _command(job)
    return command, _environment(job)


def prepare_tpu(
    args: argparse.Namespace, current_env: dict[str, str], pod: bool = False
) -> tuple[argparse.Namespace, dict[str, str]]:
    """``args`` and ``current_env`` with torch_xla's switch for bf16 in it, where bf16 is asked for.

    Raises:
        NotBuiltError: the environment of a whole pod is asked for.
    """
    if pod:
        raise NotBuiltError("prepare_tpu(pod=True): starting a job on a TPU pod is not built yet in this version.")
    if args.mixed_precision == "bf16":
        downcast = env.decode_bool(env.encode(args.downcast_bf16 or False))
        current_env["XLA_DOWNCAST_BF16" if downcast else "XLA_USE_BF16"] = "1"
    return args, current_env


def prepare_sagemager_args_inputs(sagemaker_config: Any, args: argparse.Namespace) -> tuple[argparse.Namespace, Any]:
    """The arguments of a SageMaker estimator and its inputs.

    Raises:
        NotBuiltError: always, in this version.
    """
    raise NotBuiltError("A SageMaker job was asked for, which is not built yet in this version.")
