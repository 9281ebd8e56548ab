"""Plans made from a command line for a machine that the test describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from accelerate.cli.launch import job_of, launch_command_parser
from accelerate.launch.base import Job, LaunchPlan
from accelerate.launch.hardware import NO_DEVICES, Devices
from accelerate.launch.registry import choose

Asked = Callable[..., Job]
Planned = Callable[..., LaunchPlan]


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    """The job of a command line, on a machine with 8 cores."""

    def ask(
        words: str | Sequence[str],
        *,
        devices: Devices = NO_DEVICES,
        environ: Mapping[str, str] | None = None,
        yaml: str | None = None,
    ) -> Job:
        line = words.split() if isinstance(words, str) else list(words)
        if yaml is not None:
            file = tmp_path / "config.yaml"
            file.write_text(yaml)
            line = ["--config_file", str(file), *line]
        job, _ = job_of(launch_command_parser().parse_args(line), environ=environ or {}, devices=devices)
        return replace(job, cores=8)

    return ask


@pytest.fixture
def planned(asked: Asked) -> Planned:
    """The plan of a command line, made by the launcher that accepts it."""

    def plan(words: str | Sequence[str], **surroundings: object) -> LaunchPlan:
        job = asked(words, **surroundings)
        return choose(job).plan(job)

    return plan
