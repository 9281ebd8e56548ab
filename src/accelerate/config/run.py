"""All settings of a launch as one record."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

from accelerate.config.enums import ComputeEnvironment, DistributedType, SageMakerDistributedType
from accelerate.config.fields import Section, Setting, option, settings_of
from accelerate.config.kinds import BOOLEAN, MACHINES, NUMBER, WHOLE
from accelerate.config.sections.compile import DynamoSection
from accelerate.config.sections.deepspeed import DeepSpeedSection
from accelerate.config.sections.fsdp import FsdpSection
from accelerate.config.sections.megatron import MegatronSection
from accelerate.config.sections.mpi import MpiSection
from accelerate.config.sections.parallelism import ParallelismSection
from accelerate.config.sections.precision import Fp8Section
from accelerate.config.sections.sagemaker import SageMakerSection
from accelerate.config.sections.tpu import TpuSection

__all__ = ["SECTIONS", "RunConfig", "all_settings", "setting_at"]

STRATEGY = "Strategy"
PROCESSES = "Processes"
MACHINES_GROUP = "Machines"
PRECISION = "Precision and memory"
SCRIPT = "Script"
WATCHING = "Logs, restarts and watching"

_DISTRIBUTED_WORDS = (
    *(member.value for member in DistributedType),
    *(member.value for member in SageMakerDistributedType if member.value not in DistributedType.__members__),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Every setting of a launch. Sections hold what one subject alone needs; None means "not said".

    ``use_deepspeed``, ``use_fsdp``, ``use_megatron_lm`` and ``tpu`` exclude each other; ``distributed_type`` is the
    file's way to say the same, and :func:`accelerate.config.resolve.resolve` makes the two agree.
    """

    SECTION: ClassVar[Section] = Section(name="", title="Processes")

    # what runs, and as what
    strategy: str | None = option(
        None,
        env="ACCELERATE_STRATEGY",
        group=STRATEGY,
        help="Strategy by its registered name, also one of your own.",
    )
    multi_gpu: bool = option(
        False,
        kind=BOOLEAN,
        action="on",
        yaml=None,
        group=STRATEGY,
        help="One process on each of several devices (data parallel).",
    )
    use_deepspeed: bool = option(
        False,
        kind=BOOLEAN,
        action="on",
        env="ACCELERATE_USE_DEEPSPEED",
        yaml=None,
        group=STRATEGY,
        help="Train with DeepSpeed.",
        ask="Train with DeepSpeed?",
    )
    use_fsdp: bool = option(
        False,
        kind=BOOLEAN,
        action="on",
        env="ACCELERATE_USE_FSDP",
        yaml=None,
        group=STRATEGY,
        help="Train fully sharded.",
        ask="Train fully sharded (FSDP)?",
    )
    use_megatron_lm: bool = option(
        False,
        kind=BOOLEAN,
        action="on",
        env="ACCELERATE_USE_MEGATRON_LM",
        yaml=None,
        group=STRATEGY,
        help="Train with Megatron-LM.",
        ask="Train with Megatron-LM?",
    )
    use_parallelism_config: bool = option(
        False,
        kind=BOOLEAN,
        action="on",
        env="ACCELERATE_USE_PARALLELISM_CONFIG",
        yaml=None,
        group=STRATEGY,
        help="Lay the processes out as a mesh, by the parallelism sizes.",
        ask="Lay the processes out as a mesh (tensor, context, sequence parallelism)?",
    )
    cpu: bool = option(
        False,
        kind=BOOLEAN,
        action="on",
        env="ACCELERATE_USE_CPU",
        yaml="use_cpu",
        group=STRATEGY,
        help="Train on the CPU.",
        ask="Train on the CPU only?",
    )
    tpu: bool = option(False, kind=BOOLEAN, action="on", yaml=None, group=STRATEGY, help="Train on a TPU.")
    engine: str | None = option(
        None,
        env="ACCELERATE_ENGINE",
        group=STRATEGY,
        help="What starts the processes: inline, torchrun, deepspeed, mpi, slurm, ray, tpu-pod, sagemaker.",
    )
    distributed_type: str | None = option(
        None,
        flag=None,
        choices=_DISTRIBUTED_WORDS,
        choice_aliases=(("TPU", "XLA"),),
        group=STRATEGY,
        help="The strategy, as configuration files say it.",
    )
    compute_environment: str = option(
        "LOCAL_MACHINE",
        flag=None,
        choices=tuple(member.value for member in ComputeEnvironment),
        group=STRATEGY,
        help="Where the job runs.",
        ask="Where does the job run?",
    )
    # processes
    num_processes: int | None = option(
        None,
        kind=WHOLE,
        env="ACCELERATE_NUM_PROCESSES",
        group=PROCESSES,
        help="Processes in all, over all machines. Default: one for each device.",
        ask="How many processes in all?",
    )
    gpu_ids: str | None = option(
        None,
        group=PROCESSES,
        help="Devices to use on this machine, such as 0,2, or all.",
        ask="Which devices (such as 0,2, or all)?",
    )
    num_cpu_threads_per_process: int | None = option(
        None,
        kind=WHOLE,
        env="OMP_NUM_THREADS",
        yaml=None,
        yaml_aliases=("num_cpu_threads_per_process",),
        group=PROCESSES,
        help="Threads that each process uses for computing.",
    )
    enable_cpu_affinity: bool = option(
        False,
        kind=BOOLEAN,
        action="on",
        env="ACCELERATE_CPU_AFFINITY",
        group=PROCESSES,
        help="Keep each process on the CPU cores near its device.",
        ask="Keep each process on the CPU cores near its device?",
    )
    # machines
    num_machines: int | tuple[int, int] = option(
        1,
        kind=MACHINES,
        group=MACHINES_GROUP,
        cli_default=None,
        help="Machines, or least:most for an elastic job.",
        ask="How many machines?",
    )
    machine_rank: int = option(
        0,
        kind=WHOLE,
        group=MACHINES_GROUP,
        cli_default=None,
        help="Number of this machine, from 0.",
        ask="What is the number of this machine (0 is the first)?",
    )
    main_process_ip: str | None = option(
        None, group=MACHINES_GROUP, help="Address of the first machine.", ask="Address of the first machine?"
    )
    main_process_port: int | None = option(
        None,
        kind=WHOLE,
        group=MACHINES_GROUP,
        help="Port of the first machine; 0 takes a free one.",
        ask="Port of the first machine?",
    )
    same_network: bool = option(
        False,
        kind=BOOLEAN,
        action="on",
        group=MACHINES_GROUP,
        help="All machines are in one local network.",
        ask="Are all machines in one local network?",
    )
    rdzv_backend: str = option(
        "static",
        group=MACHINES_GROUP,
        help="How machines find each other: static or c10d.",
        ask="How do machines find each other (static, c10d)?",
    )
    rdzv_conf: str = option("", yaml=None, group=MACHINES_GROUP, help="Further settings of the meeting: k=v,k=v.")
    # precision
    mixed_precision: str | None = option(
        None,
        env="ACCELERATE_MIXED_PRECISION",
        choices=("no", "fp16", "bf16", "fp8"),
        group=PRECISION,
        help="Number format of the computation.",
        ask="Mixed precision?",
    )
    gradient_accumulation_steps: int | None = option(
        None,
        kind=WHOLE,
        env="ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
        yaml="deepspeed_config.gradient_accumulation_steps",
        yaml_aliases=("gradient_accumulation_steps",),
        group=PRECISION,
        help="Batches whose gradients are added up before a step.",
        ask="Batches whose gradients are added up before a step?",
    )
    gradient_clipping: float | None = option(
        None,
        kind=NUMBER,
        env="ACCELERATE_GRADIENT_CLIPPING",
        yaml="deepspeed_config.gradient_clipping",
        yaml_aliases=("gradient_clipping",),
        group=PRECISION,
        help="Largest norm of the gradient, for engines that clip themselves.",
        ask="Largest norm of the gradient?",
    )
    # the script
    module: bool = option(
        False,
        kind=BOOLEAN,
        action="on",
        yaml=None,
        flag="--module",
        flag_aliases=("-m",),
        cli_default=None,
        group=SCRIPT,
        help="The script is a module, as after `python -m`.",
    )
    no_python: bool = option(
        False,
        kind=BOOLEAN,
        action="on",
        yaml=None,
        cli_default=None,
        group=SCRIPT,
        help="The script is a program of its own.",
    )
    # logs, restarts, watching
    quiet: bool = option(
        False,
        kind=BOOLEAN,
        action="on",
        yaml=None,
        flag_aliases=("-q",),
        cli_default=None,
        group=WATCHING,
        help="On an error, show nothing but the script's own lines.",
    )
    debug: bool = option(
        False,
        kind=BOOLEAN,
        action="on",
        env="ACCELERATE_DEBUG_MODE",
        cli_default=None,
        group=WATCHING,
        help="Check shapes before every collective call.",
        ask="Check shapes before every collective call (slower)?",
    )
    dry_run: bool = option(
        False,
        kind=BOOLEAN,
        action="on",
        yaml=None,
        group=WATCHING,
        help="Show what would be started, and stop.",
    )
    tee: str = option(
        "0",
        flag="--tee",
        flag_aliases=("-t",),
        yaml=None,
        group=WATCHING,
        help="Streams that go to the screen and to files: 0 none, 1 out, 2 err, 3 both, or 0:1,1:3 by rank.",
    )
    log_dir: str | None = option(None, yaml=None, group=WATCHING, help="Folder for the logs of the processes.")
    role: str = option("default", yaml=None, group=WATCHING, help="Role of the workers, in logs.")
    max_restarts: int = option(
        0,
        kind=WHOLE,
        yaml=None,
        group=WATCHING,
        help="Times that the processes are started again after a failure.",
    )
    monitor_interval: float = option(
        0.1, kind=NUMBER, yaml=None, group=WATCHING, help="Seconds between two looks at the processes."
    )
    resume: str | None = option(
        None,
        env="ACCELERATE_RESUME",
        choices=("auto", "no"),
        yaml=None,
        group=WATCHING,
        help="auto: `accelerator.resume()` goes on from the newest complete checkpoint.",
    )
    hang_timeout: float | None = option(
        None,
        kind=NUMBER,
        env="ACCELERATE_HANG_TIMEOUT",
        group=WATCHING,
        help="Seconds that a rank waits in a collective call before it asks where the others are; 30, 0 for no limit.",
    )

    fsdp: FsdpSection = field(default_factory=FsdpSection)
    deepspeed: DeepSpeedSection = field(default_factory=DeepSpeedSection)
    megatron: MegatronSection = field(default_factory=MegatronSection)
    parallelism: ParallelismSection = field(default_factory=ParallelismSection)
    fp8: Fp8Section = field(default_factory=Fp8Section)
    dynamo: DynamoSection = field(default_factory=DynamoSection)
    mpi: MpiSection = field(default_factory=MpiSection)
    tpu_settings: TpuSection = field(default_factory=TpuSection)
    sagemaker: SageMakerSection = field(default_factory=SageMakerSection)

    @property
    def machine_range(self) -> tuple[int, int]:
        """Least and largest number of machines; the two differ for elastic jobs only."""
        count = self.num_machines
        return (count, count) if isinstance(count, int) else count


SECTIONS: dict[str, type] = {
    "fsdp": FsdpSection,
    "deepspeed": DeepSpeedSection,
    "megatron": MegatronSection,
    "parallelism": ParallelismSection,
    "fp8": Fp8Section,
    "dynamo": DynamoSection,
    "mpi": MpiSection,
    "tpu_settings": TpuSection,
    "sagemaker": SageMakerSection,
}
"""The sections of a :class:`RunConfig`, by attribute."""


@cache
def all_settings() -> tuple[Setting, ...]:
    """Every setting of a launch, in the order of the questionnaire and of the help."""
    found = list(settings_of(RunConfig))
    for owner in SECTIONS.values():
        found.extend(settings_of(owner))
    return tuple(found)


@cache
def _by_path() -> dict[str, Setting]:
    return {item.path: item for item in all_settings()}


def setting_at(path: str) -> Setting:
    """The setting whose attribute path in :class:`RunConfig` is ``path``, such as ``fsdp.version``."""
    return _by_path()[path]
