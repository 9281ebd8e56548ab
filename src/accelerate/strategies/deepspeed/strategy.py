"""The strategy that hands training to DeepSpeed's engine: one engine for every ``prepare`` call with a model."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from accelerate.config.enums import DistributedType
from accelerate.errors import NotBuiltError, PrepareError
from accelerate.strategies.base import Bundle, Capabilities, Kind, PreparePort, Strategy
from accelerate.strategies.deepspeed import gradients, library
from accelerate.strategies.deepspeed.building import Built, Wanted, build
from accelerate.strategies.deepspeed.handle import DeepSpeedEngineWrapper
from accelerate.strategies.deepspeed.placeholders import DummyScheduler
from accelerate.strategies.deepspeed.precision import EnginePrecision
from accelerate.strategies.deepspeed.tracing import handles_of
from accelerate.strategies.deepspeed.wrappers import DeepSpeedSchedulerWrapper
from accelerate.strategies.sharded.alone import close_own_group, open_own_group
from accelerate.transforms.base import PrepareContext, Stage

if TYPE_CHECKING:
    from accelerate.checkpoint.adapter import StateAdapter
    from accelerate.precision.base import Precision
    from accelerate.runtime import Runtime

__all__ = ["DeepSpeedStrategy"]


@dataclass(slots=True)
class _Pending:
    """What goes with the model that ``prepare_model`` is about to get, and what came out."""

    wanted: Wanted
    built: Built | None = None


class DeepSpeedStrategy(Strategy[Any]):
    """ZeRO by DeepSpeed. ``options`` is a DeepSpeedPlugin; with several named ones, the selected one counts.

    The façade divides losses by the window's length, so windows may have any length; the engine is told where a
    window closes. ``optimizer.step()`` is what steps the engine, after clipping.
    """

    name = "deepspeed"
    caps = Capabilities(
        joint_prepare=True,
        max_models=1,
        places_model=False,
        sharded_state=True,
        needs_group=True,
        owns_backward=True,
        owns_clipping=True,
        owns_precision=True,
        owns_checkpoint=True,
    )
    stages: ClassVar[tuple[Stage, ...]] = (Stage.LOW_PRECISION, Stage.WRAP)

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._handles: list[weakref.ref[DeepSpeedEngineWrapper]] = []
        self._pending: _Pending | None = None
        self._own_group = False

    def legacy_type(self, device_type: str) -> DistributedType:
        return DistributedType.DEEPSPEED

    @property
    def handles(self) -> list[DeepSpeedEngineWrapper]:
        """Those of the engines that are still in use, oldest first. An engine keeps its handle."""
        return [handle for held in self._handles if (handle := held()) is not None]

    # Setting up

    def setup(self, runtime: Runtime) -> None:
        super().setup(runtime)
        sizes = getattr(runtime, "parallelism", None)
        if sizes is not None and getattr(sizes, "total_size", 1) > 1:
            raise NotBuiltError(
                f"DeepSpeed with a parallelism configuration of {sizes.active_mesh_dims} was asked for; sequence, "
                "context and tensor parallelism beside DeepSpeed are not built yet. Leave parallelism_config out."
            )
        self._own_group = open_own_group(runtime)
        library.connect(runtime)

    def precision_for(self, mode: str, settings: dict[str, Any]) -> Precision:
        plugin = self.plugin
        made = EnginePrecision(mode, self.runtime.device, settings)
        if not plugin.is_auto("torch_autocast.enabled") and plugin.get_value("torch_autocast.enabled"):
            return made
        plugin.set_mixed_precision(mode)
        chosen = plugin.configured_precision()
        return made if chosen in (None, mode) else EnginePrecision(chosen, self.runtime.device, settings)

    @property
    def plugin(self) -> Any:
        """The plugin in use."""
        from accelerate.state import AcceleratorState

        return AcceleratorState._shared_state and AcceleratorState().deepspeed_plugin or self.options

    # Preparing

    def check(self, bundle: Bundle) -> None:
        super().check(bundle)
        for kind in (Kind.OPTIMIZER, Kind.SCHEDULER):
            found = list(bundle.of(kind))
            if len(found) > 1:
                raise PrepareError(
                    f"prepare() got {len(found)} {kind.value}s, but one DeepSpeed engine has one. Call prepare() once "
                    "for each model with its own."
                )

    def prepare(self, bundle: Bundle, port: PreparePort) -> Bundle:
        self.check(bundle)
        for item in bundle.of(Kind.LOADER):
            item.value = port.prepare_data_loader(item.value, device_placement=item.place)
        model = next(bundle.of(Kind.MODEL), None)
        optimizer = next(bundle.of(Kind.OPTIMIZER), None)
        scheduler = next(bundle.of(Kind.SCHEDULER), None)
        if model is not None:
            loaders = [item.value for item in bundle.items if item.kind is Kind.LOADER]
            self._pending = _Pending(
                Wanted(
                    plugin=self.plugin,
                    optimizer=None if optimizer is None else optimizer.value,
                    scheduler=None if scheduler is None else scheduler.value,
                    loaders=loaders or list(getattr(port, "_dataloaders", ())),
                    moves=_moves(port, self.shard_spec().count),
                    strict=bool(loaders),
                )
            )
            try:
                model.value = port.prepare_model(model.value, device_placement=model.place)
                made = self._pending.built
            finally:
                self._pending = None
            if made is not None:
                port.deepspeed_engine_wrapped = made.handle  # type: ignore[attr-defined]
            if made is not None and optimizer is not None:
                optimizer.value = port.prepare_optimizer(made.optimizer, device_placement=False)  # type: ignore[arg-type]
        if scheduler is not None:
            scheduler.value = self._scheduler(scheduler.value, port, None if model is None else made)
        return bundle

    def _scheduler(self, given: Any, port: PreparePort, made: Built | None) -> Any:
        if made is not None and made.scheduler is not None:
            return port.prepare_scheduler(DeepSpeedSchedulerWrapper(made.scheduler, made.optimizer))
        if isinstance(given, DummyScheduler):
            raise PrepareError(
                "prepare() got a DummyScheduler without its model and optimizer. Prepare the three in one call."
            )
        return port.prepare_scheduler(given)

    def prepare_model(self, model: torch.nn.Module, ctx: PrepareContext) -> torch.nn.Module:
        if not ctx.train:
            from accelerate.transforms import transform

            for stage in (Stage.LOW_PRECISION, Stage.PLACE, Stage.PRECISION):
                model = transform(stage, model, ctx)
            return model
        pending = self._pending
        if pending is None:
            pending = _Pending(Wanted(plugin=self.plugin))
        pending.built = build(model, pending.wanted, ctx)
        self._handles.append(weakref.ref(pending.built.handle))
        return pending.built.handle.engine  # type: ignore[no-any-return]

    # Stepping

    def no_sync(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        handle = self.handle_of(model)
        return nullcontext() if handle is None else handle.held()

    def handle_of(self, model: Any) -> DeepSpeedEngineWrapper | None:
        """The handle of a prepared model, or None."""
        return next((handle for handle in self.handles if handle.engine is model), None)

    def backward(self, loss: torch.Tensor, precision: Precision, **kwargs: Any) -> None:
        from accelerate.state import GradientState

        handles = handles_of(loss, self.handles)
        if not handles:
            super().backward(loss, precision, **{k: v for k, v in kwargs.items() if k != "scale_wrt_gas"})
            return
        state = GradientState()
        closing = [handle.closes(state) for handle in handles]
        for handle, closes in zip(handles[1:], closing[1:], strict=True):
            handle.enter(closes)
        first = handles[0]
        scaled = kwargs.pop("scale_wrt_gas", None)
        # The façade has divided by the window's length, unless only the engine's configuration knows of windows.
        divide = first.steps != int(state.num_steps) and scaled is not False
        first.backward(loss, closing[0], scale_wrt_gas=divide, **kwargs)
        for handle, closes in zip(handles[1:], closing[1:], strict=True):
            handle.leave(closes)

    def clip_grad_norm(
        self, models: list[torch.nn.Module], parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float
    ) -> torch.Tensor | None:
        given = list(parameters)
        handles = self._owning(given)
        if not handles:
            return super().clip_grad_norm(models, given, max_norm, norm_type)
        norms = [handle.clip(max_norm, norm_type) for handle in handles]
        return norms[0] if len(norms) == 1 else torch.stack(norms).norm(2)

    def clip_grad_value(self, parameters: Iterable[torch.Tensor], clip_value: float) -> None:
        given = list(parameters)
        handles = self._owning(given)
        if not handles:
            super().clip_grad_value(given, clip_value)
        for handle in handles:
            scale = float(getattr(handle.engine.optimizer, "loss_scale", 1.0) or 1.0)
            with torch.no_grad():
                for tensor in gradients.tensors(handle.engine):
                    tensor.clamp_(-clip_value * scale, clip_value * scale)

    def scale_gradients(self, models: Iterable[torch.nn.Module], factor: float) -> bool:
        handles = [handle for model in models if (handle := self.handle_of(model)) is not None and handle.pending]
        for handle in handles:
            handle.scale(factor)
        return bool(handles)

    def _owning(self, parameters: list[torch.Tensor]) -> list[DeepSpeedEngineWrapper]:
        """The engines that train some of these parameters."""
        if len(self.handles) == 1:
            return list(self.handles)
        own = {id(parameter) for parameter in parameters}
        return [h for h in self.handles if any(id(p) in own for p in h.engine.module.parameters())]

    # The rest

    def unwrap(self, model: torch.nn.Module) -> torch.nn.Module:
        handle = self.handle_of(model)
        return model if handle is None else handle.engine.module

    def state(self) -> StateAdapter:
        from accelerate.strategies.deepspeed.state import DeepSpeedStateAdapter

        return DeepSpeedStateAdapter(self.handle_of, self.unwrap)

    def teardown(self) -> None:
        self._handles.clear()
        if self._own_group:
            library.disconnect()
            close_own_group()
            self._own_group = False


def _moves(port: Any, count: int) -> int:
    """How many steps of a schedule one optimizer step is: those of :class:`AcceleratedScheduler`."""
    split = bool(getattr(getattr(port, "dataloader_config", None), "split_batches", False))
    return 1 if split or getattr(port, "step_scheduler_once", False) else count
