"""Settings of TPU machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from accelerate.config.fields import Section, option
from accelerate.config.kinds import BOOLEAN, ITEMS

__all__ = ["TpuSection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuSection:
    """What the ``tpu_*`` keys and the TPU flags say. In a file they stand at the top level."""

    SECTION: ClassVar[Section] = Section(
        name="tpu_settings",
        title="TPU",
        about="In force with --tpu, or `distributed_type: XLA` in a file.",
    )

    use_cluster: bool = option(
        False,
        kind=BOOLEAN,
        action="on",
        flag="--tpu_cluster",
        flag_off="--no_tpu_cluster",
        dest="tpu_use_cluster",
        yaml="tpu_use_cluster",
        help="Start the job on all machines of a TPU pod.",
        ask="Start the job on all machines of a TPU pod?",
    )
    use_sudo: bool = option(
        False,
        kind=BOOLEAN,
        action="on",
        flag="--tpu_use_sudo",
        yaml="tpu_use_sudo",
        help="Run commands on the pod's machines with sudo.",
        ask="Run commands on the pod's machines with sudo?",
    )
    vm: tuple[str, ...] = option(
        (),
        kind=ITEMS,
        action="append",
        flag="--vm",
        yaml="tpu_vm",
        cli_default=None,
        help="Names of single machines of the pod; give the flag once for each.",
    )
    env: tuple[str, ...] = option(
        (),
        kind=ITEMS,
        action="append",
        flag="--env",
        yaml="tpu_env",
        cli_default=None,
        help="NAME=VALUE that the pod's machines get; give the flag once for each.",
    )
    main_training_function: str = option(
        "main",
        flag="--main_training_function",
        cli_default=None,
        help="Function of the script that is run in every process (TPU only).",
        ask="Name of the function that trains?",
    )
    downcast_bf16: bool = option(
        False,
        kind=BOOLEAN,
        action="on",
        flag="--downcast_bf16",
        env="ACCELERATE_DOWNCAST_BF16",
        help="With bf16, turn doubles into bfloat16 too, and floats into bfloat16.",
        ask="Turn doubles into bfloat16 too?",
    )
    name: str | None = option(None, flag=None, yaml="tpu_name", help="Name of the TPU.", ask="Name of the TPU?")
    zone: str | None = option(None, flag=None, yaml="tpu_zone", help="Zone of the TPU.", ask="Zone of the TPU?")
    command_file: str | None = option(
        None,
        flag=None,
        help="File of commands that `accelerate tpu-config` runs on the machines.",
    )
    commands: tuple[str, ...] | None = option(
        None,
        kind=ITEMS,
        flag=None,
        help="Commands that `accelerate tpu-config` runs on the machines.",
    )
