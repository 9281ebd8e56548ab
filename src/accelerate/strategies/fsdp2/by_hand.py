"""The pieces of version 2 as functions, for libraries that put a preparation of their own together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from accelerate import env, runtime
from accelerate.checkpoint.naming import strip_markers
from accelerate.errors import PrepareError, StateError
from accelerate.strategies.fsdp2 import weights
from accelerate.strategies.sharded.activation import checkpoint_units
from accelerate.strategies.sharded.agreement import broadcast
from accelerate.strategies.sharded.ignored import find_ignored, ignored_parameters
from accelerate.strategies.sharded.units import choose_units, policy_for
from accelerate.transforms.base import PrepareContext

__all__ = [
    "disable_fsdp_ram_efficient_loading",
    "enable_fsdp_ram_efficient_loading",
    "ensure_weights_retied",
    "fsdp2_apply_ac",
    "fsdp2_canonicalize_names",
    "fsdp2_load_full_state_dict",
    "fsdp2_prepare_auto_wrap_policy",
    "fsdp2_prepare_model",
    "fsdp2_switch_optimizer_parameters",
    "get_fsdp2_grad_scaler",
    "get_parameters_from_modules",
]

_LOADING = "FSDP_CPU_RAM_EFFICIENT_LOADING"


def enable_fsdp_ram_efficient_loading() -> None:
    """Has libraries that load pretrained weights read them on the first rank only."""
    env.put(_LOADING, True)


def disable_fsdp_ram_efficient_loading() -> None:
    """Has libraries that load pretrained weights read them on every rank."""
    env.put(_LOADING, False)


def get_fsdp2_grad_scaler(**kwargs: Any) -> torch.amp.GradScaler:
    """A gradient scaler for parameters that ``fully_shard`` divided: ranks skip a step together.

    Args:
        **kwargs: Those of ``torch.amp.GradScaler``; ``device`` is the job's own where it is not given.
    """
    held = runtime.find()
    kwargs.setdefault("device", held.device.type if held is not None else "cuda")
    # torch reduces the verdict on a divided gradient over its mesh, so its own scaler serves.
    return torch.amp.GradScaler(**kwargs)


def fsdp2_canonicalize_names(named_params: Mapping[str, Any]) -> dict[str, Any]:
    """The same values by the names they have in the bare model, whatever compiles, checkpoints or wraps it."""
    return {strip_markers(name): value for name, value in named_params.items()}


def fsdp2_prepare_auto_wrap_policy(
    fsdp_plugin: Any, model: torch.nn.Module
) -> Callable[[torch.nn.Module], bool] | None:
    """A function that tells the modules of ``model`` that become units; None where only the model itself does."""
    policy = policy_for(fsdp_plugin, model)
    if policy is None:
        return None
    ignored = ignored_parameters(find_ignored(model, getattr(fsdp_plugin, "ignored_modules", None)))
    units = set(choose_units(model, policy, ignored))
    return lambda module: module in units


def fsdp2_apply_ac(accelerator: Any, model: torch.nn.Module) -> torch.nn.Module:
    """``model`` with activation checkpointing around the units that the plugin's policy picks, put in place."""
    plugin = accelerator.state.fsdp_plugin
    units = choose_units(model, policy_for(plugin, model))
    return checkpoint_units(model, units, offload=bool(getattr(plugin, "activation_checkpointing_offload", False)))


def fsdp2_prepare_model(accelerator: Any, model: torch.nn.Module) -> torch.nn.Module:
    """Collective. The model divided as the Accelerator's plugin says; one that is divided already as it is.

    Args:
        accelerator: An Accelerator whose strategy is FSDP version 2.
        model: A model as it was built or loaded.

    Raises:
        StateError: the Accelerator trains by another strategy.
    """
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        return model
    held = runtime.current()
    if held.strategy is None or held.strategy.name != "fsdp2":
        name = None if held.strategy is None else held.strategy.name
        raise StateError(
            f"fsdp2_prepare_model() was called in a job whose strategy is {name!r}. Construct "
            "Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2)) first."
        )
    settings = accelerator._prepare_settings() if hasattr(accelerator, "_prepare_settings") else {}
    return held.strategy.prepare_model(model, PrepareContext(runtime=held, settings=settings))


def fsdp2_load_full_state_dict(
    accelerator: Any, model: torch.nn.Module, full_sd: Mapping[str, Any], cpu_offload: bool = False
) -> None:
    """Collective. Fills a divided model, which may be on "meta", from a state that the first rank has whole.

    Args:
        accelerator: The Accelerator in use.
        model: A model that ``fully_shard`` divided.
        full_sd: Whole tensors by canonical name on the first rank; what the others pass is not looked at.
        cpu_offload: Whether parameters stay in host memory.

    Raises:
        PrepareError: the first rank lacks a tensor; raised on every rank.
    """
    held = runtime.current()
    own = {strip_markers(name): value for name, value in full_sd.items()} if held.topology.rank == 0 else {}
    divided = {strip_markers(n): p for n, p in model.named_parameters() if isinstance(p, DTensor)}
    lacking = [[name for name in divided if name not in own] if held.topology.rank == 0 else []]
    missing = held.collectives.broadcast_objects(lacking)[0]
    if missing:
        raise PrepareError(
            f"fsdp2_load_full_state_dict() got no {missing[0]!r} on the first rank, and lacks {len(missing) - 1} more. "
            "Pass the model's whole state_dict() there."
        )
    weights.make_room(model, torch.device("cpu") if cpu_offload else held.device)
    weights.fill(model, own, set(divided))
    meshes = [parameter.device_mesh for parameter in divided.values()]
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if meshes and not isinstance(tensor, DTensor):
            value = own.get(strip_markers(name))
            if value is not None:
                tensor.data.copy_(value)
            broadcast(tensor.data, meshes[0])


def fsdp2_switch_optimizer_parameters(optimizer: torch.optim.Optimizer, mapping: Mapping[Any, Any]) -> None:
    """Points an optimizer at new parameters, in place and in order.

    Args:
        optimizer: Any optimizer.
        mapping: From the old parameter, its ``id()`` or its ``data_ptr()``, to the new one.

    Raises:
        PrepareError: a parameter is not in the mapping, so that it would train nothing.
    """
    # A tensor hashes as its id and compares element by element, so it cannot stand beside numbers as a key.
    new_of = {id(key) if isinstance(key, torch.Tensor) else key: value for key, value in mapping.items()}
    for index, group in enumerate(optimizer.param_groups):
        fresh = []
        for old in group["params"]:
            keys = [key for key in (id(old), old.data_ptr()) if key in new_of]
            if not keys:
                raise PrepareError(
                    f"fsdp2_switch_optimizer_parameters() got no successor of a parameter of shape {tuple(old.shape)} "
                    f"in group {index}, which would go on training the old one. Give the mapping all of them."
                )
            fresh.append(new_of[keys[0]])
        for old, new in zip(group["params"], fresh, strict=True):
            if old is not new and old in optimizer.state:
                optimizer.state[new] = optimizer.state.pop(old)
        group["params"] = fresh


def get_parameters_from_modules(
    modules: Iterable[torch.nn.Module] | str | None, model: torch.nn.Module, device: Any
) -> set[torch.nn.Parameter]:
    """The parameters of modules that are left out of sharding, moved to ``device``.

    Args:
        modules: Modules, or a regular expression matched against the whole names of ``model``'s modules; or None.
        model: The model they are in.
        device: Where their parameters go.
    """
    parameters = ignored_parameters(find_ignored(model, modules))
    for parameter in parameters:
        parameter.data = parameter.data.to(device)
    return parameters


def ensure_weights_retied(
    param_init_fn: Callable[[torch.nn.Module], Any], model: torch.nn.Module, device: Any
) -> Callable[[torch.nn.Module], Any]:
    """``param_init_fn`` that keeps parameters shared which ``model`` shares, though it makes them module by module.

    Args:
        param_init_fn: Gives one module's own parameters their data.
        model: The model on the "meta" device.
        device: Where the parameters end up.
    """
    counts: dict[torch.nn.Parameter, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                counts[parameter] = counts.get(parameter, 0) + 1
    made: dict[torch.nn.Parameter, torch.nn.Parameter] = {}

    def init(module: torch.nn.Module) -> Any:
        shared = {n: p for n, p in module._parameters.items() if p is not None and counts.get(p, 0) > 1}
        result = param_init_fn(module)
        for name, old in shared.items():
            new = module._parameters[name]
            if old not in made and new is not None:
                made[old] = new if new.device == torch.device(device) else torch.nn.Parameter(new.data.to(device))
            module._parameters[name] = made[old]
        return result

    return init
