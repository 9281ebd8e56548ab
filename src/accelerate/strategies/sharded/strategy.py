"""What both versions of fully sharded data parallelism do the same way."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from accelerate.checkpoint.naming import canonical_parameters
from accelerate.config.enums import DistributedType
from accelerate.mesh import Degrees, build, data_position, sharding_mesh, simple_mesh
from accelerate.strategies.base import Bundle, Capabilities, Kind, PreparePort, ShardSpec, Strategy
from accelerate.strategies.sharded import clipping
from accelerate.strategies.sharded.activation import checkpoint_units
from accelerate.strategies.sharded.alone import close_own_group, open_own_group
from accelerate.strategies.sharded.deferred import Initializer
from accelerate.strategies.sharded.ignored import find_ignored, ignored_parameters, scalars
from accelerate.strategies.sharded.masters import raise_masters
from accelerate.strategies.sharded.replicated import GradientAverage, keep_alike
from accelerate.strategies.sharded.source import (
    Findings,
    Source,
    examine,
    give_data,
    is_first,
    share_buffers,
    share_parameters,
)
from accelerate.strategies.sharded.successors import Successors, bare_optimizer, no_mixed_kernels, take_state
from accelerate.strategies.sharded.units import choose_units, policy_for
from accelerate.transforms.base import PrepareContext, Stage

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from accelerate.precision.base import Precision
    from accelerate.runtime import Runtime

__all__ = ["ShardedStrategy", "is_divided"]

_MIXED = ("fp16", "bf16", "fp8")
_DIVIDED = "_accelerate_divided"


def is_divided(model: torch.nn.Module) -> bool:
    """Whether ``prepare`` has divided this model already."""
    return bool(getattr(model, _DIVIDED, False))


class ShardedStrategy(Strategy[Any]):
    """Parameters, gradients and optimizer state divided over a mesh. ``options`` is a FullyShardedDataParallelPlugin.

    Optimizers may be built before or after their model is prepared, and prepared in the same call or in a later one.
    """

    caps = Capabilities(places_model=False, sharded_state=True, rebinds_parameters=True, needs_group=True)
    stages: ClassVar[tuple[Stage, ...]] = (
        Stage.LOW_PRECISION,
        Stage.PRECISION,
        Stage.ACTIVATION_CHECKPOINTING,
        Stage.COMPILE_REGIONS,
        Stage.WRAP,
        Stage.COMPILE,
    )
    mesh: DeviceMesh

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.successors = Successors()
        self.averages: list[GradientAverage] = []
        self._own_group = False

    def legacy_type(self, device_type: str) -> DistributedType:
        return DistributedType.FSDP

    # Setting up

    def setup(self, runtime: Runtime) -> None:
        super().setup(runtime)
        self._own_group = open_own_group(runtime)
        parallelism = getattr(runtime, "parallelism", None)
        if runtime.mesh is None and parallelism is not None and Degrees.of(parallelism).total > 1:
            runtime.mesh = build(Degrees.of(parallelism), runtime.device.type, runtime.topology.world_size)
        if runtime.mesh is not None:
            self.mesh = sharding_mesh(runtime.mesh)
        else:
            self.mesh = simple_mesh(runtime.device.type, runtime.topology.world_size, self.shard_size())

    def shard_size(self) -> int | None:
        """Over how many neighbouring ranks a model is divided; None for all of them."""
        return None

    def precision_for(self, mode: str, settings: dict[str, Any]) -> Precision:
        if mode in _MIXED:
            # Buffers stay in float32, as they do under every other strategy: rounding positions or statistics to 16
            # bits is not what mixed precision means there.
            self.options.set_mixed_precision("bf16" if mode == "fp8" else mode, buffer_autocast=True)
        return super().precision_for(mode, settings)

    def shard_spec(self) -> ShardSpec:
        if self.runtime.mesh is None:
            return super().shard_spec()
        count, index = data_position(self.runtime.mesh)
        return ShardSpec(count=count, index=index)

    def gradient_divisor(self) -> int:
        return self.mesh.size()

    # Preparing

    def prepare(self, bundle: Bundle, port: PreparePort) -> Bundle:
        self.check(bundle)
        models = list(bundle.of(Kind.MODEL))
        optimizers = [bare_optimizer(item.value) for item in bundle.of(Kind.OPTIMIZER)]
        kept = take_state(optimizers, [item.value for item in models if not is_divided(item.value)])
        for item in models:
            # Here too, since the façade may hand the model to a function that somebody put in the place of ours.
            before = self.successors.watch(item.value)
            item.value = port.prepare_model(item.value, device_placement=item.place)
            self.successors.record(before, self.named_after(item.value))
        for optimizer in optimizers:
            self.rebind(optimizer)
        for optimizer, state in kept:
            self.state().load_optimizer_state(optimizer, [item.value for item in models], state)
        for item in bundle.of(Kind.LOADER):
            item.value = port.prepare_data_loader(item.value, device_placement=item.place)
        for item in bundle.of(Kind.OPTIMIZER):
            item.value = port.prepare_optimizer(item.value, device_placement=item.place)
        for item in bundle.of(Kind.SCHEDULER):
            item.value = port.prepare_scheduler(item.value)
        return bundle

    def rebind(self, optimizer: torch.optim.Optimizer) -> None:
        """Points a bare optimizer at the parameters its models have now.

        Raises:
            PrepareError: it cannot step them as it was told to.
        """
        self.successors.rebind(optimizer, self.convert_state)
        no_mixed_kernels([optimizer])

    @abstractmethod
    def convert_state(self, old: torch.Tensor, new: torch.Tensor, state: dict[str, Any]) -> dict[str, Any]:
        """One parameter's optimizer state made to fit what took the parameter's place."""

    def prepare_model(self, model: torch.nn.Module, ctx: PrepareContext) -> torch.nn.Module:
        from accelerate.transforms import transform

        if not ctx.train:
            return self._prepare_for_evaluation(model, ctx)
        if is_divided(model):
            return model
        self.check_model(model)
        before = self.successors.watch(model)
        findings, left_out = self._look(model)
        if getattr(ctx.runtime.precision, "mode", "no") in _MIXED or self._computes_low():
            raise_masters(model)
        for stage in self.stages:
            if stage is Stage.WRAP:
                model = self._wrap(model, ctx, findings, left_out)
            elif stage is Stage.ACTIVATION_CHECKPOINTING:
                model = self._checkpoint(model, left_out)
            else:
                model = transform(stage, model, ctx)
        self.successors.record(before, self.named_after(model))
        return model

    def _look(self, model: torch.nn.Module) -> tuple[Findings, set[torch.nn.Parameter]]:
        """Whose weights count, and which parameters are left out of sharding."""
        modules = find_ignored(model, self.options.ignored_modules)
        left_out = ignored_parameters(modules) | scalars(model)
        private = [name for name, parameter in canonical_parameters(model) if parameter in left_out]
        findings = examine(model, self.mesh, expected=self._one_loads(), private=private)
        if findings.source is Source.FIRST_RANK and any(parameter.is_meta for parameter in left_out):
            give_data(model, left_out, self.runtime.device)
            left_out = ignored_parameters(modules) | scalars(model)
        return findings, left_out

    def _computes_low(self) -> bool:
        """Whether a policy of the user's own computes in 16 bits, whatever the Accelerator's precision."""
        dtype = getattr(self.options.mixed_precision_policy, "param_dtype", None)
        return dtype in (torch.float16, torch.bfloat16)

    def _one_loads(self) -> bool:
        """Whether only the first rank was told to load weights."""
        return bool(self.options.cpu_ram_efficient_loading or self.options.sync_module_states)

    def check_model(self, model: torch.nn.Module) -> None:
        """Raises PrepareError where this version cannot divide the model."""

    def named_after(self, model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
        """The parameters of a prepared model by canonical name."""
        return dict(canonical_parameters(model))

    def _checkpoint(self, model: torch.nn.Module, left_out: set[torch.nn.Parameter]) -> torch.nn.Module:
        recompute = bool(self.options.activation_checkpointing)
        offload = bool(self.options.activation_checkpointing_offload)
        if not (recompute or offload):
            return model
        units = choose_units(model, policy_for(self.options, model), left_out)
        return checkpoint_units(model, units, recompute=recompute, offload=offload)

    def _wrap(
        self, model: torch.nn.Module, ctx: PrepareContext, findings: Findings, left_out: set[torch.nn.Parameter]
    ) -> torch.nn.Module:
        units = choose_units(model, policy_for(self.options, model), left_out)
        if findings.source is Source.FIRST_RANK:
            if findings.deferred and is_first(self.mesh):
                Initializer(model, torch.device("cpu"), self.options.param_init_fn).through(model)
            share_buffers(model, self.mesh, [name for name, _ in model.named_buffers()], self.runtime.device)
        averaged = keep_alike(model, self.mesh, findings, left_out, one_loads=self._one_loads())
        if averaged:
            self.averages.append(GradientAverage(averaged, self.mesh))
        wrapped = self.divide(model, units, findings, left_out)
        wrapped.__dict__[_DIVIDED] = True
        return wrapped

    @abstractmethod
    def divide(
        self,
        model: torch.nn.Module,
        units: list[torch.nn.Module],
        findings: Findings,
        left_out: set[torch.nn.Parameter],
    ) -> torch.nn.Module:
        """Collective. The model divided over the mesh, by units; ``left_out`` stays whole."""

    def _prepare_for_evaluation(self, model: torch.nn.Module, ctx: PrepareContext) -> torch.nn.Module:
        """A model that is only read stays whole on every rank."""
        from accelerate.transforms import transform

        findings = examine(model, self.mesh, expected=True)
        for stage in (Stage.LOW_PRECISION, Stage.PLACE, Stage.PRECISION):
            model = transform(stage, model, ctx)
        if findings.source is Source.FIRST_RANK:
            share_buffers(model, self.mesh, [name for name, _ in model.named_buffers()], self.runtime.device)
            share_parameters(model.parameters(), self.mesh)
        return model

    # Stepping

    @property
    def brings_together(self) -> bool:
        """Whether checkpoints are to hold whole state in single files (FULL_STATE_DICT)."""
        kind = self.options.state_dict_type
        return str(getattr(kind, "name", kind)).upper() == "FULL_STATE_DICT"

    def paused_averages(self) -> ExitStack:
        """Contexts in which gradients of whole parameters are not averaged."""
        stack = ExitStack()
        for average in self.averages:
            stack.enter_context(average.paused())
        return stack

    def clip_grad_norm(
        self, models: list[torch.nn.Module], parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float
    ) -> torch.Tensor | None:
        return clipping.clip(parameters, max_norm, norm_type, self.part_of(models))

    def part_of(self, models: list[torch.nn.Module]) -> Callable[[torch.Tensor], clipping.Part]:
        """How a parameter's gradient lies over the ranks, as :func:`clipping.clip` asks it."""
        return clipping.dtensor_part

    def teardown(self) -> None:
        self.averages.clear()
        if self._own_group:
            close_own_group()
            self._own_group = False
