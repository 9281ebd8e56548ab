"""The seam for a way of training on several processes.

Calls, in order: ``setup`` once, when an Accelerator is constructed; ``precision_for`` once; ``prepare`` for every call
of ``accelerator.prepare``; then per step ``no_sync``, ``backward``, ``clip_grad_norm``; ``unwrap`` and ``state``
whenever asked; ``teardown`` at the end of training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from accelerate.comm.here import frames
from accelerate.comm.watch import watched
from accelerate.errors import PrepareError
from accelerate.transforms.base import PrepareContext, Stage

if TYPE_CHECKING:
    import torch

    from accelerate.checkpoint.adapter import StateAdapter
    from accelerate.config.enums import DistributedType
    from accelerate.precision.base import Precision
    from accelerate.runtime import Runtime

__all__ = ["Bundle", "Capabilities", "Item", "Kind", "PreparePort", "ShardSpec", "Strategy"]

Options = TypeVar("Options")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a strategy does itself, or cannot do. Stands where a branch on the distributed type would.

    joint_prepare: the model and its optimizer must come in one ``prepare`` call.
    max_models: the most models in one ``prepare`` call; None for any number.
    places_model: the strategy's ``wrap_model`` needs the model on the device first.
    sharded_state: every rank holds a part of the state, so saving is collective.
    rebinds_parameters: wrapping replaces parameter objects, so optimizers are rebound by name.
    owns_*: the engine does this; the façade leaves it alone.
    """

    joint_prepare: bool = False
    max_models: int | None = None
    places_model: bool = True
    sharded_state: bool = False
    rebinds_parameters: bool = False
    needs_group: bool = False
    owns_backward: bool = False
    owns_accumulation: bool = False
    owns_clipping: bool = False
    owns_precision: bool = False
    owns_checkpoint: bool = False


class Kind(Enum):
    """What an argument of ``prepare`` is."""

    MODEL = "model"
    OPTIMIZER = "optimizer"
    LOADER = "loader"
    SCHEDULER = "scheduler"
    OTHER = "other"


@dataclass(slots=True, kw_only=True)
class Item:
    """One argument of ``prepare``: what it is, the object as given, and what it became (``value``)."""

    kind: Kind
    given: Any
    value: Any
    place: bool = True
    done: bool = False


@dataclass(slots=True)
class Bundle:
    """The arguments of one ``prepare`` call, positions kept."""

    items: list[Item]

    def of(self, kind: Kind) -> Iterator[Item]:
        """The items of one kind that are not prepared yet, in order."""
        return (item for item in self.items if item.kind is kind and not item.done)

    def values(self) -> tuple[Any, ...]:
        """What ``prepare`` returns, in the order of its arguments."""
        return tuple(item.value for item in self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSpec:
    """Which part of the data a rank reads: part ``index`` of ``count`` equal parts.

    Ranks that share a part (tensor or context parallel peers) have the same ``index``.
    """

    count: int = 1
    index: int = 0


class PreparePort(Protocol):
    """The façade's one-object calls, which a user's subclass may override; a strategy goes through them."""

    def prepare_model(
        self, model: torch.nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> torch.nn.Module: ...

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None
    ) -> torch.optim.Optimizer: ...

    def prepare_data_loader(self, data_loader: Any, device_placement: bool | None = None) -> Any: ...

    def prepare_scheduler(self, scheduler: Any) -> Any: ...


class Strategy(ABC, Generic[Options]):
    """One way of training on several processes. A user's own derives from this and is registered by entry point
    (group ``accelerate.strategies``), by :func:`accelerate.strategies.registry.register`, or passed as an object.
    """

    name: ClassVar[str]
    caps: ClassVar[Capabilities] = Capabilities()
    stages: ClassVar[tuple[Stage, ...]] = (
        Stage.LOW_PRECISION,
        Stage.PLACE,
        Stage.PRECISION,
        Stage.COMPILE_REGIONS,
        Stage.WRAP,
        Stage.COMPILE,
    )

    def __init__(self, options: Options) -> None:
        self.options = options
        self.runtime: Runtime = None  # type: ignore[assignment]  # set by setup, before anything else is called

    @abstractmethod
    def legacy_type(self, device_type: str) -> DistributedType:
        """The ``DistributedType`` that the public interface reports for this strategy on such a device."""

    def setup(self, runtime: Runtime) -> None:
        """Collective. Takes the job this process is part of."""
        self.runtime = runtime
        frames()  # every rank is here: where others made the group, the ranks meet now to compare notes from here on

    def precision_for(self, mode: str, settings: dict[str, Any]) -> Precision:
        """The Precision object for ``mode`` ("no", "fp16", "bf16", "fp8")."""
        from accelerate.precision import choose

        return choose(mode, self.runtime.device, settings)

    def shard_spec(self) -> ShardSpec:
        """Which part of the data this rank reads."""
        topology = self.runtime.topology
        return ShardSpec(count=topology.world_size, index=topology.rank)

    def public_prepare(self) -> tuple[str, Any] | None:
        """Name and value of the public function that prepares a model by hand, which other libraries replace."""
        return None

    def check(self, bundle: Bundle) -> None:
        """Raises PrepareError where the capabilities do not allow this bundle."""
        models, optimizers = list(bundle.of(Kind.MODEL)), list(bundle.of(Kind.OPTIMIZER))
        most = self.caps.max_models
        if most is not None and len(models) > most:
            raise PrepareError(
                f"prepare() got {len(models)} models, but strategy {self.name!r} prepares at most {most} in one call. "
                "Call prepare() once for each model with its own optimizer."
            )
        if self.caps.joint_prepare and optimizers and not models:
            raise PrepareError(
                f"prepare() got an optimizer without its model. Strategy {self.name!r} replaces the parameters, so "
                "call prepare(model, optimizer) in one call."
            )

    def prepare(self, bundle: Bundle, port: PreparePort) -> Bundle:
        """Collective. Prepares everything in ``bundle``: models, their optimizers' parameters, loaders, schedulers."""
        from accelerate.strategies.rebind import Rebinding

        self.check(bundle)
        rebinding = None
        if self.caps.rebinds_parameters:
            rebinding = Rebinding(
                [item.value for item in bundle.of(Kind.MODEL)], [item.value for item in bundle.of(Kind.OPTIMIZER)]
            )
        models = list(bundle.of(Kind.MODEL))
        for item in models:
            item.value = port.prepare_model(item.value, device_placement=item.place)
        if rebinding is not None:
            rebinding.apply([item.value for item in models])
        for item in bundle.of(Kind.LOADER):
            item.value = port.prepare_data_loader(item.value, device_placement=item.place)
        for item in bundle.of(Kind.OPTIMIZER):
            item.value = port.prepare_optimizer(item.value, device_placement=item.place)
        for item in bundle.of(Kind.SCHEDULER):
            item.value = port.prepare_scheduler(item.value)
        return bundle

    def prepare_model(self, model: torch.nn.Module, ctx: PrepareContext) -> torch.nn.Module:
        """Collective. Runs this strategy's stages on one model, in order."""
        from accelerate.transforms import transform

        for stage in self.stages:
            if stage is Stage.WRAP:
                model = self.wrap_model(model, ctx) if ctx.train else model
            else:
                model = transform(stage, model, ctx)
        return model

    def wrap_model(self, model: torch.nn.Module, ctx: PrepareContext) -> torch.nn.Module:
        """Collective. Puts the strategy's wrapper around a placed model. Not called for an evaluation-only model."""
        return model

    def no_sync(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        """A context in which backward does not reduce gradients over the ranks."""
        return nullcontext()

    def trigger_sync(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        """A context whose backward reduces gradients though the forward ran under ``no_sync``."""
        return nullcontext()

    def backward(self, loss: torch.Tensor, precision: Precision, **kwargs: Any) -> None:
        """Runs backward; gradients are averaged over the ranks unless inside ``no_sync``.

        Raises:
            RankLeftError: another rank left while this one waited for its gradients.
        """
        with watched("backward()"):
            precision.backward(loss, **kwargs)

    def clip_grad_norm(
        self, models: list[torch.nn.Module], parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float
    ) -> torch.Tensor | None:
        """Clips unscaled gradients to ``max_norm`` and returns the norm of the whole model's gradient, before
        clipping. Collective where parameters are sharded. ``models`` are those prepared so far."""
        import torch

        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=norm_type)

    def clip_grad_value(self, parameters: Iterable[torch.Tensor], clip_value: float) -> None:
        """Clips every element of the unscaled gradients to ±``clip_value``."""
        import torch

        torch.nn.utils.clip_grad_value_(parameters, clip_value)

    def scale_gradients(self, models: Iterable[torch.nn.Module], factor: float) -> bool:
        """Multiplies the gradients of ``models`` where an engine keeps them; False where they are the parameters' own
        ``grad``, which is then the caller's to do."""
        return False

    def gradient_divisor(self) -> int:
        """By how many ranks a summed gradient has been divided when backward returns (the averaging group's size)."""
        return self.runtime.topology.world_size

    @abstractmethod
    def unwrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """Takes this strategy's own wrapper off; returns the same object where there is none."""

    @abstractmethod
    def state(self) -> StateAdapter:
        """How the state of what this strategy prepared is read and written."""

    def teardown(self) -> None:
        """Frees what the strategy holds beside the process group."""
