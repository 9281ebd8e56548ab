"""Handlers: what code hands to ``Accelerator(kwargs_handlers=[...])`` for torch's own objects."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from accelerate.config.enums import DDPCommunicationHookType
from accelerate.config.filling import resting
from accelerate.errors import ConfigError

if TYPE_CHECKING:
    import torch

__all__ = [
    "AutocastKwargs",
    "DistributedDataParallelKwargs",
    "GradScalerKwargs",
    "GradientAccumulationPlugin",
    "InitProcessGroupKwargs",
    "KwargsHandler",
    "ProfileKwargs",
    "accumulation_steps",
]


def accumulation_steps(value: Any) -> int:
    """``value`` as the length of an accumulation window.

    Raises:
        ConfigError: it is no whole number of 1 or more.
    """
    try:
        steps = operator.index(value)
    except TypeError:
        steps = 0
    if steps < 1:
        raise ConfigError(
            f"gradient_accumulation_steps={value!r}: it is how many micro-batches make one step, a whole number of 1 "
            "or more. Use 1 for a step at every batch."
        )
    return steps


class KwargsHandler:
    """Base of handlers: a dataclass whose fields are the keywords of something else."""

    def to_dict(self) -> dict[str, Any]:
        """Every field by name; values are not copied."""
        return {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]

    def to_kwargs(self) -> dict[str, Any]:
        """The fields that differ from what they are when nothing is said."""
        usual = self._usual()
        return {name: value for name, value in self.to_dict().items() if name not in usual or usual[name] != value}

    def _usual(self) -> dict[str, Any]:
        return resting(self)


@dataclass
class AutocastKwargs(KwargsHandler):
    """How ``torch.autocast`` is entered. ``cache_enabled`` None leaves torch's own choice."""

    enabled: bool = True
    cache_enabled: bool | None = None


@dataclass
class DistributedDataParallelKwargs(KwargsHandler):
    """Arguments of ``DistributedDataParallel``, and the compression of its gradient messages.

    ``comm_hook`` compresses them, inside ``comm_wrapper``; ``comm_state_option`` goes to ``PowerSGDState``. Both take
    members of DDPCommunicationHookType or their values.
    """

    dim: int = 0
    broadcast_buffers: bool = True
    bucket_cap_mb: int = 25
    find_unused_parameters: bool = False
    check_reduction: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    comm_hook: DDPCommunicationHookType = DDPCommunicationHookType.NO
    comm_wrapper: Literal[DDPCommunicationHookType.NO, DDPCommunicationHookType.FP16, DDPCommunicationHookType.BF16] = (
        DDPCommunicationHookType.NO
    )
    comm_state_option: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            self.comm_hook = DDPCommunicationHookType(self.comm_hook)
            self.comm_wrapper = DDPCommunicationHookType(self.comm_wrapper)  # type: ignore[assignment]
        except ValueError as error:
            raise ConfigError(f"{error}: use one of {', '.join(DDPCommunicationHookType.list())}.") from error
        if self.comm_wrapper not in (
            DDPCommunicationHookType.NO,
            DDPCommunicationHookType.FP16,
            DDPCommunicationHookType.BF16,
        ):
            raise ConfigError(f"comm_wrapper={self.comm_wrapper} cannot wrap another hook: use no, fp16 or bf16.")

    def to_dict(
        self, ignore_keys: Sequence[str] = ("comm_hook", "comm_wrapper", "comm_state_option")
    ) -> dict[str, Any]:
        """The arguments of ``DistributedDataParallel``: every field but ``ignore_keys``."""
        return {name: value for name, value in super().to_dict().items() if name not in ignore_keys}

    def register_comm_hook(self, model: Any) -> None:
        """Puts the compression on a ``DistributedDataParallel`` model. Collective with PowerSGD."""
        from accelerate.strategies.comm_hooks import register_comm_hook

        register_comm_hook(model, self)


@dataclass
class GradScalerKwargs(KwargsHandler):
    """How the loss is scaled under fp16."""

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    enabled: bool = True


@dataclass
class InitProcessGroupKwargs(KwargsHandler):
    """Arguments of ``init_process_group``. The default backend stands for "the device's own".

    ``timeout`` is the longest that a collective call may take: 10 minutes for nccl and 30 for others by default.
    """

    backend: str | None = "nccl"
    init_method: str | None = None
    timeout: timedelta | None = None

    def __post_init__(self) -> None:
        if self.timeout is None:
            minutes = 10 if self.backend is None or self.backend == "nccl" else 30
            self.timeout = timedelta(minutes=minutes)

    def _usual(self) -> dict[str, Any]:
        return {"backend": "nccl", "init_method": None, "timeout": timedelta(minutes=10)}


_ACTIVITIES = {"cpu": "CPU", "cuda": "CUDA", "xpu": "XPU", "mtia": "MTIA", "hpu": "HPU"}


@dataclass
class ProfileKwargs(KwargsHandler):
    """Arguments of ``torch.profiler.profile`` in words. ``output_trace_dir`` asks for one trace a rank.

    ``activities`` None records what torch records by default. ``schedule_option`` holds the arguments of
    ``torch.profiler.schedule``.
    """

    activities: list[Literal["cpu", "xpu", "mtia", "cuda", "hpu"]] | None = None
    schedule_option: dict[str, int] | None = None
    on_trace_ready: Callable[..., Any] | None = None
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    output_trace_dir: str | None = None

    def build(self) -> torch.profiler.profile:
        """The profiler, not started.

        Raises:
            ConfigError: an activity is not known, or not to this torch.
        """
        import torch.profiler as profiler

        activities = None
        if self.activities is not None:
            activities = []
            for name in self.activities:
                activity = getattr(profiler.ProfilerActivity, _ACTIVITIES.get(name, ""), None)
                if activity is None:
                    raise ConfigError(f"Profiler activity {name!r} is not known here: use {', '.join(_ACTIVITIES)}.")
                activities.append(activity)
        schedule = None if self.schedule_option is None else profiler.schedule(**self.schedule_option)
        ours = ("activities", "schedule_option", "output_trace_dir")
        same = {name: value for name, value in self.to_dict().items() if name not in ours}
        return profiler.profile(activities=activities, schedule=schedule, **same)


@dataclass
class GradientAccumulationPlugin(KwargsHandler):
    """How gradients are added up over batches before a step.

    ``adjust_scheduler``: schedulers step as often as without accumulation. ``sync_with_dataloader``: the last batch of
    an epoch ends a window. ``sync_each_batch``: ranks reduce at every batch, for less memory and more traffic.
    """

    num_steps: int | None = None  # None: what the Accelerator or the launch says
    adjust_scheduler: bool = True
    sync_with_dataloader: bool = True
    sync_each_batch: bool = False

    def __post_init__(self) -> None:
        if self.num_steps is not None:
            self.num_steps = accumulation_steps(self.num_steps)
