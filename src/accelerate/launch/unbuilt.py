"""Ways of starting a job that are promised and not there yet: each says so instead of starting something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from accelerate.errors import NotBuiltError
from accelerate.launch.base import Job, Launcher, LaunchPlan

__all__ = ["UNBUILT", "UnbuiltLauncher"]


class UnbuiltLauncher(Launcher):
    """Accepts the jobs that ``when`` picks out, and refuses them by name."""

    name: ClassVar[str] = "unbuilt"

    def __init__(self, engine: str, what: str, when: Callable[[Job], bool], instead: str) -> None:
        self.engine, self.what, self.when, self.instead = engine, what, when, instead

    def accepts(self, job: Job) -> bool:
        return self.when(job)

    def plan(self, job: Job) -> LaunchPlan:
        raise NotBuiltError(f"{self.what} was asked for, which is not built yet in this version. {self.instead}")

    def run(self, plan: LaunchPlan) -> int:
        raise NotBuiltError(f"{self.what} is not built yet in this version. {self.instead}")


UNBUILT = (
    UnbuiltLauncher(
        "sagemaker",
        "A SageMaker job",
        lambda job: job.config.compute_environment == "AMAZON_SAGEMAKER",
        "Use `compute_environment: LOCAL_MACHINE` inside the SageMaker job's own script.",
    ),
    UnbuiltLauncher(
        "tpu-pod",
        "Training on a TPU",
        lambda job: job.config.tpu or job.config.tpu_settings.use_cluster,
        "Leave --tpu and --tpu_cluster out to train on this machine's CPU or GPUs.",
    ),
    UnbuiltLauncher(
        "megatron",
        "Training with Megatron-LM",
        lambda job: job.config.use_megatron_lm,
        "FSDP (--use_fsdp) shards large models too.",
    ),
    UnbuiltLauncher("ray", "The Ray engine", lambda job: False, "Start `accelerate launch` on every machine."),
)
