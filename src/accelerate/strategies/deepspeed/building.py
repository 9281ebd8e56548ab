"""Makes an engine from a model, what goes with it, and the configuration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from accelerate.config.deepspeed_json import HfDeepSpeedConfig
from accelerate.strategies.deepspeed import optimizers
from accelerate.strategies.deepspeed.facts import Facts, batch_size_of, hidden_size_of
from accelerate.strategies.deepspeed.handle import DeepSpeedEngineWrapper
from accelerate.strategies.deepspeed.placeholders import DummyOptim, DummyScheduler
from accelerate.strategies.deepspeed.precision import check_device, compute_dtype
from accelerate.strategies.deepspeed.resolve import resolve
from accelerate.strategies.deepspeed.wrappers import DeepSpeedOptimizerWrapper
from accelerate.transforms.base import PrepareContext, Stage

__all__ = ["Built", "Wanted", "build"]

_SCHEDULES = "deepspeed.runtime.lr_schedules"


@dataclass(slots=True, kw_only=True)
class Wanted:
    """What one ``prepare`` call has for its model. strict: the loaders are those of this call."""

    plugin: Any
    optimizer: Any = None
    scheduler: Any = None
    loaders: Sequence[Any] = field(default_factory=list)
    moves: int = 1
    strict: bool = False


@dataclass(slots=True, kw_only=True)
class Built:
    """An engine by its handle, its optimizer as ``prepare`` returns it, and the scheduler that it drives itself."""

    handle: DeepSpeedEngineWrapper
    optimizer: DeepSpeedOptimizerWrapper | None
    scheduler: Any


def build(model: torch.nn.Module, wanted: Wanted, ctx: PrepareContext) -> Built:
    """Collective. Makes the engine.

    Raises:
        ConfigError: the configuration contradicts itself or the objects, or the device cannot do it.
    """
    import deepspeed

    from accelerate.transforms import transform

    plugin = wanted.plugin
    plugin.set_moe_leaf_modules(model)
    trains = wanted.optimizer is not None
    config = _configuration(model, wanted, ctx, trains)
    model = transform(Stage.LOW_PRECISION, model, ctx)
    client, groups = _client(wanted.optimizer, model, config, ctx.runtime.device.type)
    if client is not None and client is not wanted.optimizer and getattr(wanted.scheduler, "optimizer", None):
        wanted.scheduler.optimizer = client
    made = deepspeed.initialize(
        model=model,
        optimizer=client,
        model_parameters=wanted.optimizer.params if isinstance(wanted.optimizer, DummyOptim) else None,
        lr_scheduler=_own_scheduler(wanted.scheduler),
        config=config,
        dist_init_required=False,
    )
    engine = made[0]
    _compile(engine, ctx)
    handle = DeepSpeedEngineWrapper(engine)
    optimizer = DeepSpeedOptimizerWrapper(engine.basic_optimizer, handle, groups) if trains else None
    return Built(handle=handle, optimizer=optimizer, scheduler=engine.lr_scheduler if trains else None)


def _configuration(model: torch.nn.Module, wanted: Wanted, ctx: PrepareContext, trains: bool) -> dict[str, Any]:
    """The resolved configuration, with what this device needs."""
    from accelerate.state import GradientState

    device = ctx.runtime.device
    sizes = [size for loader in wanted.loaders if (size := batch_size_of(loader)) is not None]
    config = resolve(
        wanted.plugin,
        Facts(
            ranks=ctx.runtime.topology.world_size,
            steps=int(GradientState().num_steps),
            batches=tuple(sizes),
            hidden_size=hidden_size_of(model),
            optimizer=wanted.optimizer,
            scheduler=wanted.scheduler,
            moves=wanted.moves,
            device=device.type,
            trains=trains,
            loaders_given=wanted.strict,
        ),
    )
    dtype = compute_dtype(config)
    check_device("fp16" if dtype is torch.float16 else "no", device)
    tree = HfDeepSpeedConfig({})
    tree.config = config
    for part in ("offload_optimizer", "offload_param"):
        key = f"zero_optimization.{part}"
        if tree.get_value(f"{key}.device") == "none" or (not trains and part == "offload_optimizer"):
            tree.del_config_sub_tree(key)
        elif device.type == "cpu" and tree.get_value(key) is not None:
            tree.set_value(f"{key}.pin_memory", False)
    if config.get("steps_per_print") == math.inf:
        config["steps_per_print"] = None
    if not trains:
        _only_forward(config)
    optimizers.adapt_section(config, device.type)
    return config


def _only_forward(config: dict[str, Any]) -> None:
    """Without an optimizer, only stage 3 has anything to do."""
    config.pop("optimizer", None)
    config.pop("scheduler", None)
    zero = config.get("zero_optimization")
    if zero is not None and zero.get("stage") != 3:
        config.pop("zero_optimization")


def _client(
    given: Any, model: torch.nn.Module, config: dict[str, Any], device_type: str
) -> tuple[torch.optim.Optimizer | None, list[list[Any]]]:
    """The optimizer that the engine gets, None where it makes its own; and the parameters of every group."""
    if given is None:
        return None, []
    if isinstance(given, DummyOptim):
        return None, _groups(given.params)
    groups = [list(group["params"]) for group in given.param_groups if group["params"]]
    config.setdefault("zero_allow_untested_optimizer", True)  # any optimizer of torch's interface steps its part
    return optimizers.with_kernels(given, config, device_type), groups


def _groups(params: Sequence[Any]) -> list[list[Any]]:
    if params and isinstance(params[0], dict):
        return [list(group["params"]) for group in params if group["params"]]
    return [list(params)]


def _own_scheduler(given: Any) -> Any:
    """What the engine is to move itself: the callable of a placeholder, or one of DeepSpeed's own schedules."""
    if isinstance(given, DummyScheduler):
        return given.lr_scheduler_callable
    return given if type(given).__module__ == _SCHEDULES else None


def _compile(engine: Any, ctx: PrepareContext) -> None:
    plugin = ctx.settings.get("dynamo")
    if plugin is None or str(getattr(plugin.backend, "value", plugin.backend)).upper() == "NO":
        return
    kwargs = dict(plugin.to_kwargs())
    backend = str(kwargs.pop("backend", "inductor"))
    if kwargs.pop("disable", False):
        return
    engine.compile(backend=backend.lower(), compile_kwargs=kwargs)
