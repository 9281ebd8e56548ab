"""The object a training script talks to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from accelerate.accelerator import construct
from accelerate.accelerator.gathering import GatherMixin
from accelerate.accelerator.parallel import ParallelMixin
from accelerate.accelerator.persistence import PersistenceMixin
from accelerate.accelerator.preparing import PrepareMixin
from accelerate.accelerator.process import ProcessMixin
from accelerate.accelerator.session import SessionMixin
from accelerate.accelerator.settings import SettingsMixin
from accelerate.accelerator.stepping import SteppingMixin
from accelerate.accelerator.trackers import TrackingMixin
from accelerate.accelerator.window import Window
from accelerate.state import AcceleratorState, GradientState
from accelerate.tracking import filter_trackers

if TYPE_CHECKING:
    from accelerate.config.compile import TorchDynamoPlugin
    from accelerate.config.data import DataLoaderConfiguration
    from accelerate.config.deepspeed import DeepSpeedPlugin
    from accelerate.config.enums import DynamoBackend, LoggerType, PrecisionType, RNGType
    from accelerate.config.fsdp import FullyShardedDataParallelPlugin
    from accelerate.config.handlers import GradientAccumulationPlugin, KwargsHandler
    from accelerate.config.megatron import MegatronLMPlugin
    from accelerate.config.parallelism import ParallelismConfig, TorchTensorParallelPlugin
    from accelerate.config.project import ProjectConfiguration
    from accelerate.tracking import GeneralTracker

__all__ = ["Accelerator"]

_split_batches: Any = object()


class Accelerator(
    ProcessMixin,
    SettingsMixin,
    PrepareMixin,
    SteppingMixin,
    GatherMixin,
    PersistenceMixin,
    TrackingMixin,
    ParallelMixin,
    SessionMixin,
):
    """Runs one training script on any hardware and any number of processes.

    Every process of a job constructs one; the first construction joins the job's process group (collective), later
    ones share its state and must not ask for something else.

    Args:
        device_placement: Whether ``prepare`` puts things on the device.
        split_batches: As in :class:`DataLoaderConfiguration`, where it belongs.
        mixed_precision: "no", "fp16", "bf16" or "fp8"; what the launch asked for where None.
        gradient_accumulation_steps: How many micro-batches make one optimizer step.
        cpu: Use the CPU even where there is an accelerator.
        dataloader_config: How loaders are prepared.
        deepspeed_plugin: A plugin, a dictionary of its settings, or a dictionary of named plugins.
        fsdp_plugin: Shard parameters, gradients and optimizer state.
        torch_tp_plugin: Tensor parallelism (superseded by ``parallelism_config``).
        megatron_lm_plugin: Train with Megatron-LM.
        rng_types: Which generators are kept in step over the ranks at the start of every epoch.
        log_with: Trackers, by name or as objects.
        project_dir: Where checkpoints and logs go.
        project_config: The same in detail.
        gradient_accumulation_plugin: Accumulation in detail.
        step_scheduler_with_optimizer: Whether prepared schedulers follow the optimizer's steps.
        kwargs_handlers: Handlers for what is configured rarely (DDP, autocast, scaler, process group, profiler, fp8).
        dynamo_backend: Compile prepared models with this back end.
        dynamo_plugin: Compilation in detail.
        deepspeed_plugins: Named DeepSpeed plugins.
        parallelism_config: Degrees of each kind of parallelism.
        strategy: A strategy of your own: its name, its class, or an instance.
        step_scheduler_once: Prepared schedulers move once an optimizer step, whatever the number of processes.

    Raises:
        MisplacedArgumentError: a keyword is not known; the message names where it belongs. A TypeError.
        ConfigError: settings contradict one another, or the launch. A ValueError.
    """

    def __init__(
        self,
        device_placement: bool = True,
        split_batches: bool = _split_batches,
        mixed_precision: PrecisionType | str | None = None,
        gradient_accumulation_steps: int = 1,
        cpu: bool = False,
        dataloader_config: DataLoaderConfiguration | None = None,
        deepspeed_plugin: DeepSpeedPlugin | dict[str, DeepSpeedPlugin] | None = None,
        fsdp_plugin: FullyShardedDataParallelPlugin | None = None,
        torch_tp_plugin: TorchTensorParallelPlugin | None = None,
        megatron_lm_plugin: MegatronLMPlugin | None = None,
        rng_types: list[str | RNGType] | None = None,
        log_with: str | LoggerType | GeneralTracker | list[str | LoggerType | GeneralTracker] | None = None,
        project_dir: str | os.PathLike[str] | None = None,
        project_config: ProjectConfiguration | None = None,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        step_scheduler_with_optimizer: bool = True,
        kwargs_handlers: list[KwargsHandler] | None = None,
        dynamo_backend: DynamoBackend | str | None = None,
        dynamo_plugin: TorchDynamoPlugin | None = None,
        deepspeed_plugins: DeepSpeedPlugin | dict[str, DeepSpeedPlugin] | None = None,
        parallelism_config: ParallelismConfig | None = None,
        strategy: Any = None,
        step_scheduler_once: bool = False,
        **unknown: Any,
    ) -> None:
        construct.refuse_unknown(unknown, _PARAMETERS)
        self.project_configuration = construct.project(project_config, project_dir)
        self.handlers = construct.sort_handlers(kwargs_handlers)
        self._expose_handlers()
        self.dataloader_config = construct.loader_settings(dataloader_config, split_batches, _split_batches)
        self.device_placement = device_placement
        self.step_scheduler_with_optimizer = step_scheduler_with_optimizer
        self.step_scheduler_once = step_scheduler_once
        engines = construct.engines(
            deepspeed_plugin, deepspeed_plugins, fsdp_plugin, megatron_lm_plugin, parallelism_config
        )
        self.state = AcceleratorState(
            construct.precision(mixed_precision, engines.deepspeed),
            cpu,
            construct.dynamo(dynamo_plugin, dynamo_backend),
            engines.deepspeed,
            engines.fsdp,
            torch_tp_plugin,
            engines.megatron,
            engines.parallelism,
            _from_accelerator=True,
            strategy=construct.strategy_name(strategy),
            settings=self._precision_settings(),
            **construct.group_settings(self.handlers.init),
        )
        self.gradient_state = GradientState(
            gradient_accumulation_plugin=construct.accumulation(
                gradient_accumulation_plugin, gradient_accumulation_steps, engines.deepspeed
            )
        )
        self.rng_types = construct.rng_types(rng_types)
        self.log_with = filter_trackers(log_with, self.logging_dir)
        self._start_empty()

    def _start_empty(self) -> None:
        self.trackers: list[Any] = []
        self._models: list[Any] = []
        self._optimizers: list[Any] = []
        self._schedulers: list[Any] = []
        self._dataloaders: list[Any] = []
        self._custom_objects: list[Any] = []
        self._default_window = Window()
        self._window = self._default_window
        self._windows: dict[tuple[int, ...], Window] = {}
        self._item_unit = None
        self._micro_items: Any = None
        self.flag_tensor = None
        self.step = 0
        self._start_persistence()

    def __repr__(self) -> str:
        return f"Accelerator({self.state!r})"


_PARAMETERS = tuple(
    name for name in Accelerator.__init__.__code__.co_varnames[: Accelerator.__init__.__code__.co_argcount]
)
