"""One process: this one becomes the program, so that a launch costs no second interpreter."""

from __future__ import annotations

import os
import signal
import sys
from typing import ClassVar

from accelerate import env
from accelerate.launch import report
from accelerate.launch.base import Job, Launcher, LaunchPlan
from accelerate.launch.command import process_command
from accelerate.launch.shape import base_environment, shape_of
from accelerate.launch.worker import execute, user_traceback

__all__ = ["InlineLauncher"]


class InlineLauncher(Launcher):
    """Runs a job of one process: in place where the caller allows it, otherwise in a child that is waited for."""

    name: ClassVar[str] = "inline"

    def accepts(self, job: Job) -> bool:
        shape = shape_of(job)
        return shape.world_size == 1 and shape.machines[1] == 1

    def plan(self, job: Job) -> LaunchPlan:
        shape = shape_of(job)
        return LaunchPlan(
            kind=self.name,
            argv=process_command(job, unbuffered=False),
            environment=base_environment(job, shape),
            device=shape.device,
            job=job,
            notices=shape.notices,
        )

    def run(self, plan: LaunchPlan) -> int:
        if not plan.job.in_place:
            return _run_child(plan)
        env.publish(plan.environment)
        if plan.job.python:
            return _run_here(plan.job)
        if os.name == "posix":
            sys.stdout.flush()
            sys.stderr.flush()
            os.execvp(plan.argv[0], plan.argv)
        return _run_child(plan)


def _run_here(job: Job) -> int:
    try:
        execute(job.program, list(job.arguments), module=job.module)
    except SystemExit:
        raise
    except KeyboardInterrupt as error:
        sys.excepthook(type(error), error.with_traceback(user_traceback(error)), user_traceback(error))
        return 128 + signal.SIGINT
    except BaseException as error:
        _show_own(error, job)
        return 1
    return 0


def _show_own(error: BaseException, job: Job) -> None:
    record = report.describe(error)
    path = report.save_alone(record, job.config.log_dir)
    failure = report.Failure(rank=record["rank"], code=1, file=path, record=record)
    if sys.excepthook is sys.__excepthook__:
        report.show(failure, record["world_size"], quiet=job.config.quiet)
        return
    # The program brought a way of its own to show errors.
    report.show(failure, record["world_size"], quiet=job.config.quiet, text="")
    trace = user_traceback(error)
    sys.excepthook(type(error), error.with_traceback(trace), trace)


def _run_child(plan: LaunchPlan) -> int:
    import shutil
    import tempfile

    from accelerate.launch.child import run_child

    folder = plan.job.config.log_dir or tempfile.mkdtemp(prefix="accelerate-error-")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "error.json")
    values = {**env.snapshot(), **plan.environment, report.ERROR_FILE: path}
    try:
        code = run_child(plan.argv, {name: value for name, value in values.items() if value is not None})
        record = report.load(path)
        if code != 0 and (record is not None or code < 0):
            failure = report.Failure(rank=0, code=code, file=path if record else None, record=record)
            report.show(failure, 1, quiet=plan.job.config.quiet)
            return failure.exit_code
        return code
    finally:
        if not plan.job.config.log_dir and not os.path.exists(path):
            shutil.rmtree(folder, ignore_errors=True)
