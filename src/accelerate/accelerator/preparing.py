"""``prepare`` and its one-object calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from accelerate import runtime
from accelerate.accelerator.replacing import replaced_loader, replaced_model
from accelerate.devices import rng
from accelerate.errors import NotBuiltError, PrepareError
from accelerate.strategies.base import Bundle, Item, Kind
from accelerate.strategies.optimizer import AcceleratedOptimizer
from accelerate.strategies.scheduler import AcceleratedScheduler
from accelerate.transforms.base import PrepareContext

if TYPE_CHECKING:
    from accelerate.accelerator.typing import Facade

__all__ = ["PrepareMixin", "kind_of"]

_PREPARED = "_is_accelerate_prepared"


def kind_of(value: Any) -> Kind:
    """What an argument of ``prepare`` is. A placeholder of an engine counts as what it stands for."""
    if isinstance(value, torch.nn.Module):
        return Kind.MODEL
    if isinstance(value, DataLoader):
        return Kind.LOADER
    if isinstance(value, torch.optim.Optimizer) or getattr(value, "_accelerate_kind", None) == "optimizer":
        return Kind.OPTIMIZER
    scheduler_like = callable(getattr(value, "step", None)) and callable(getattr(value, "state_dict", None))
    is_scheduler = isinstance(value, torch.optim.lr_scheduler.LRScheduler) or scheduler_like
    if is_scheduler or getattr(value, "_accelerate_kind", None) == "scheduler":
        return Kind.SCHEDULER
    return Kind.OTHER


def is_prepared(value: Any) -> bool:
    """Whether ``value`` came out of ``prepare`` before."""
    if isinstance(value, (AcceleratedOptimizer, AcceleratedScheduler)):
        return True
    return bool(value.__dict__.get(_PREPARED, False)) if hasattr(value, "__dict__") else False


def _expect(call: str, value: Any, fits: bool, takes: str) -> None:
    """Raises PrepareError where a call for one kind of object got another kind."""
    if not fits:
        raise PrepareError(
            f"{call}() got a {type(value).__name__}, but takes {takes}. prepare() takes every kind, in any order."
        )


class PrepareMixin:
    """Hands objects to the strategy, and remembers what came out."""

    def prepare(self: Facade, *args: Any, device_placement: list[bool] | None = None) -> Any:
        """Collective. Makes models, optimizers, data loaders and schedulers fit the job, in one call.

        Args:
            *args: In any order. Something else passes through, and so does what is prepared already.
            device_placement: For each argument whether it is put on the device, where the default is not wanted.

        Returns:
            The prepared objects in the order of the arguments; the object itself where there is one argument.

        Raises:
            PrepareError: the strategy cannot prepare these together; the message says how to.
        """
        through: Callable[..., Iterable[Any]]
        through = self._prepare_all if self.strategy.public_prepare() is None else self._prepare_fsdp2
        given = {} if device_placement is None else {"device_placement": device_placement}
        values = tuple(through(*args, **given))
        return values if len(values) > 1 else values[0] if values else ()

    def _prepare_fsdp2(self: Facade, *args: Any, device_placement: list[bool] | None = None) -> tuple[Any, ...]:
        """What ``prepare`` calls where models are divided by FSDP 2: other libraries wrap this name."""
        return self._prepare_all(*args, device_placement=device_placement)

    def _prepare_all(self: Facade, *args: Any, device_placement: list[bool] | None = None) -> tuple[Any, ...]:
        """Collective. The prepared objects, in the order of the arguments."""
        if device_placement is None:
            device_placement = [self.device_placement] * len(args)
        elif len(device_placement) != len(args):
            raise PrepareError(
                f"prepare() got {len(args)} objects and device_placement={device_placement!r} with "
                f"{len(device_placement)} entries. Give one entry for each object."
            )
        bundle = Bundle(
            [
                Item(kind=kind_of(value), given=value, value=value, place=place, done=is_prepared(value))
                for value, place in zip(args, device_placement, strict=True)
            ]
        )
        values = self.strategy.prepare(bundle, self).values()
        self._note_names(args, values)  # type: ignore[attr-defined]
        return values

    def prepare_model(
        self: Facade, model: torch.nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> torch.nn.Module:
        """Collective. Prepares one model.

        Args:
            model: Any module.
            device_placement: Whether it is moved to the device; the Accelerator's default where None.
            evaluation_mode: The model is not trained: it is placed and runs in mixed precision, without a wrapper.
        """
        _expect("prepare_model", model, isinstance(model, torch.nn.Module), "a torch.nn.Module")
        if is_prepared(model):
            if model not in self._models:
                self._models.append(model)
            return model
        place = self.device_placement if device_placement is None else device_placement
        held = runtime.current()
        ctx = PrepareContext(runtime=held, place=place, train=not evaluation_mode, settings=self._prepare_settings())
        theirs = None if evaluation_mode else replaced_model(self, model)
        prepared = self.strategy.prepare_model(model, ctx) if theirs is None else theirs
        prepared.__dict__[_PREPARED] = True
        self._models.append(prepared)
        if not evaluation_mode and held.topology.world_size > 1:
            rng.diverge(self.strategy.shard_spec().index)
        return prepared

    def prepare_optimizer(
        self: Facade, optimizer: torch.optim.Optimizer, device_placement: bool | None = None
    ) -> AcceleratedOptimizer:
        """Puts an :class:`AcceleratedOptimizer` in front of an optimizer."""
        fits = kind_of(optimizer) is Kind.OPTIMIZER or hasattr(optimizer, "param_groups")
        _expect("prepare_optimizer", optimizer, fits, "an optimizer")
        if is_prepared(optimizer):
            if optimizer not in self._optimizers:
                self._optimizers.append(optimizer)
            return optimizer  # type: ignore[return-value]
        place = self.device_placement if device_placement is None else device_placement
        prepared = AcceleratedOptimizer(optimizer, device_placement=place)
        self._optimizers.append(prepared)
        self._windows.clear()
        return prepared

    def prepare_data_loader(
        self: Facade,
        data_loader: DataLoader[Any],
        device_placement: bool | None = None,
        slice_fn_for_dispatch: Callable[..., Any] | None = None,
    ) -> DataLoader[Any]:
        """Collective the first time (ranks agree on the seed of a shuffle). Gives this rank its part of the data.

        Args:
            data_loader: A torch DataLoader or a subclass; its own methods and attributes stay.
            device_placement: Whether tensors are moved to the device; the Accelerator's default where None.
            slice_fn_for_dispatch: How a whole batch is cut, where rank 0 reads for all.
        """
        _expect("prepare_data_loader", data_loader, isinstance(data_loader, DataLoader), "a torch DataLoader")
        if is_prepared(data_loader):
            if data_loader not in self._dataloaders:
                self._dataloaders.append(data_loader)
            return data_loader
        place = self.device_placement if device_placement is None else device_placement
        prepared: DataLoader[Any] | None = replaced_loader(self, data_loader, place, slice_fn_for_dispatch)
        if prepared is None:
            from accelerate.data.prepare import prepare_loader

            prepared = prepare_loader(
                data_loader,
                shard=self.strategy.shard_spec(),
                device=self.device if place else None,
                config=self.dataloader_config,
                rng_types=self.rng_types,
                slice_fn=slice_fn_for_dispatch,
                mesh=runtime.current().mesh,
                siblings=self._dataloaders,
            )
        self._dataloaders.append(prepared)
        return prepared

    def prepare_scheduler(self: Facade, scheduler: Any) -> AcceleratedScheduler:
        """Puts an :class:`AcceleratedScheduler` in front of a scheduler, driven by the prepared optimizer it steps."""
        fits = kind_of(scheduler) is Kind.SCHEDULER or callable(getattr(scheduler, "step", None))
        _expect("prepare_scheduler", scheduler, fits, "a learning-rate scheduler")
        if is_prepared(scheduler):
            if scheduler not in self._schedulers:
                self._schedulers.append(scheduler)
            return scheduler  # type: ignore[no-any-return]
        own = getattr(scheduler, "optimizer", None)
        matching = [o for o in self._optimizers if own is not None and (o is own or o.optimizer is own)]
        prepared = AcceleratedScheduler(
            scheduler,
            matching or list(self._optimizers),
            step_with_optimizer=self.step_scheduler_with_optimizer,
            split_batches=bool(self.dataloader_config.split_batches),
            once=self.step_scheduler_once,
        )
        self._schedulers.append(prepared)
        return prepared

    def _prepare_settings(self: Facade) -> dict[str, Any]:
        """The handlers a transform or strategy may read, as they are now."""
        return {
            "ddp": self.ddp_handler,  # type: ignore[attr-defined]
            "dynamo": self.state.dynamo_plugin,
            "autocast": self.autocast_handler,  # type: ignore[attr-defined]
            "scaler": self.scaler_handler,  # type: ignore[attr-defined]
            "fp8": self.fp8_recipe_handler,  # type: ignore[attr-defined]
        }

    def verify_device_map(self, model: torch.nn.Module) -> bool:
        """Whether some submodule is spread over several devices by a device map."""
        return any(len(set(getattr(m, "hf_device_map", {}).values())) > 1 for m in model.modules())

    def deepspeed_ulysses_dl_adapter(self, dl: Any, model: Any) -> Any:
        """Sequence-parallel view of a loader under DeepSpeed Ulysses.

        Raises:
            NotBuiltError: sequence parallelism is not built yet.
        """
        raise NotBuiltError("deepspeed_ulysses_dl_adapter() needs sequence parallelism, which is not built yet.")
