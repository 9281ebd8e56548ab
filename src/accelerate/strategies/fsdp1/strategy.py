"""FSDP version 1: ``FullyShardedDataParallel`` around a model and its units."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import CustomPolicy

from accelerate.errors import DeviceError, PrepareError
from accelerate.strategies.fsdp1.flat import flat_by_name, holders, shard_groups
from accelerate.strategies.sharded.clipping import Part
from accelerate.strategies.sharded.deferred import Initializer, same_randomness
from accelerate.strategies.sharded.held import Receiver, let_go
from accelerate.strategies.sharded.masters import even_out
from accelerate.strategies.sharded.source import Findings, Source
from accelerate.strategies.sharded.strategy import ShardedStrategy
from accelerate.strategies.sharded.units import members, part_frozen

if TYPE_CHECKING:
    from accelerate.checkpoint.adapter import StateAdapter
    from accelerate.precision.base import Precision
    from accelerate.runtime import Runtime

__all__ = ["Fsdp1Strategy"]

# Kept on a model, which does not change any more: collecting them at every step would cost more than the norm.
_GROUPS = "_accelerate_shard_groups"
_HYBRID = {
    ShardingStrategy.FULL_SHARD: ShardingStrategy.HYBRID_SHARD,
    ShardingStrategy.SHARD_GRAD_OP: ShardingStrategy._HYBRID_SHARD_ZERO2,
}


class Fsdp1Strategy(ShardedStrategy):
    """``torch.distributed.fsdp.FullyShardedDataParallel``."""

    name = "fsdp1"

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._contents: dict[int, list[str]] = {}

    def setup(self, runtime: Runtime) -> None:
        if self._offloads() and runtime.device.type == "cpu":
            raise DeviceError(
                "cpu_offload=True was asked for under FSDP version 1 on a machine whose device is the CPU: version 1 "
                "offloads through pinned memory, which only an accelerator has. Use fsdp_version=2, or leave it out: "
                "the parameters are in host memory already."
            )
        super().setup(runtime)

    def _offloads(self) -> bool:
        asked = self.options.cpu_offload
        return bool(asked.offload_params if isinstance(asked, CPUOffload) else asked)

    def shard_size(self) -> int | None:
        return self.runtime.topology.local_world_size if self._asked() in _HYBRID.values() else None

    def _asked(self) -> ShardingStrategy:
        asked = self.options.sharding_strategy
        return asked if isinstance(asked, ShardingStrategy) else ShardingStrategy.FULL_SHARD

    def sharding(self) -> ShardingStrategy:
        """The strategy for the mesh in use: hybrid where the mesh has copies, which the configuration asked for.

        Raises:
            PrepareError: the mesh has copies and the strategy divides nothing.
        """
        asked = self._asked()
        if self.mesh.ndim == 1:
            return {hybrid: plain for plain, hybrid in _HYBRID.items()}.get(asked, asked)
        if asked in _HYBRID.values():
            return asked
        if asked not in _HYBRID:
            raise PrepareError(
                f"sharding_strategy={asked.name} was asked for together with dp_replicate_size > 1. It divides "
                "nothing, so there is nothing to make copies of: use FULL_SHARD or SHARD_GRAD_OP, or plain DDP."
            )
        return _HYBRID[asked]

    def precision_for(self, mode: str, settings: dict[str, Any]) -> Precision:
        precision = super().precision_for(mode, settings)
        if mode != "fp16":
            return precision
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        from accelerate.precision.autocast import ScaledPrecision

        handler = settings.get("scaler")
        kwargs = handler.to_kwargs() if handler is not None else {}
        device = self.runtime.device
        return ScaledPrecision(device, settings, ShardedGradScaler(device=device.type, **kwargs))

    def check_model(self, model: torch.nn.Module) -> None:
        if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
            raise PrepareError(
                f"prepare() got a {type(model).__name__} that is, or holds, a FullyShardedDataParallel already. Give "
                "the model as it was before; prepare() wraps it."
            )

    def divide(
        self,
        model: torch.nn.Module,
        units: list[torch.nn.Module],
        findings: Findings,
        left_out: set[torch.nn.Parameter],
    ) -> torch.nn.Module:
        units = part_frozen(model, units, left_out)
        even_out([p for p in unit if p not in left_out] for unit in members(model, units))
        make, context = self._first_weights(model, findings, left_out)
        chosen = set(units)
        kwargs: dict[str, Any] = {
            "device_mesh": self.mesh,
            "sharding_strategy": self.sharding(),
            "cpu_offload": CPUOffload(offload_params=True) if self._offloads() else None,
            "auto_wrap_policy": CustomPolicy(lambda module: module in chosen),
            "mixed_precision": self._mixed_precision(),
            "ignored_states": list(left_out) or None,
            "param_init_fn": make,
            "device_id": torch.device("cpu") if self.runtime.device.type == "cpu" else self.runtime.device,
            # Done above, on any device: torch broadcasts on an accelerator only.
            "sync_module_states": False,
            "forward_prefetch": bool(self.options.forward_prefetch),
            "backward_prefetch": self.options.backward_prefetch,
            "limit_all_gathers": bool(self.options.limit_all_gathers),
            "use_orig_params": self.keeps_parameters,
        }
        with context, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*FullyShardedDataParallel.*deprecat.*")
            if self.mesh.size() == 1:
                warnings.filterwarnings("ignore", message="FSDP is switching to use `NO_SHARD`")
                warnings.filterwarnings("ignore", message="The `NO_SHARD` sharding strategy is deprecated")
            try:
                return FullyShardedDataParallel(model, **kwargs)
            except ValueError as error:
                if "requires_grad" not in str(error):
                    raise
                raise PrepareError(
                    "use_orig_params=False makes one flat parameter of a unit, and a unit holds frozen and trained "
                    f"parameters that cannot be parted: {str(error).splitlines()[0]} Use use_orig_params=True or "
                    "fsdp_version=2."
                ) from error

    def _first_weights(
        self, model: torch.nn.Module, findings: Findings, left_out: set[torch.nn.Parameter]
    ) -> tuple[Callable[[torch.nn.Module], None] | None, AbstractContextManager[Any]]:
        """The function that makes a unit's weights when it is wrapped, and the context to wrap in."""
        context = ExitStack()
        if findings.source is Source.FIRST_RANK:
            held = let_go(model, self.mesh, left_out)
            return Receiver(model, self.mesh, held, self.runtime.device), context
        if findings.deferred:
            initializer = Initializer(model, self.runtime.device, self.options.param_init_fn)
            context.enter_context(same_randomness(self.mesh, self.runtime.device))
            return initializer.through, context
        return None, context

    @property
    def keeps_parameters(self) -> bool:
        """Whether the model goes on showing its original parameters."""
        return bool(self.options.use_orig_params)

    def _mixed_precision(self) -> MixedPrecision | None:
        policy = self.options.mixed_precision_policy
        return policy if isinstance(policy, MixedPrecision) else None

    # Optimizers

    def named_after(self, model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
        if self.keeps_parameters:
            return super().named_after(model)
        self._contents.update(holders(model))
        return {**super().named_after(model), **flat_by_name(model)}

    def rebind(self, optimizer: torch.optim.Optimizer) -> None:
        if not self.keeps_parameters:
            self._check_flat(optimizer)
        super().rebind(optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                values = optimizer.state.get(parameter, {}).values()
                if any(isinstance(v, torch.Tensor) and v.dim() and v.numel() > parameter.numel() for v in values):
                    self._refuse_state(optimizer)

    def convert_state(self, old: torch.Tensor, new: torch.Tensor, state: dict[str, Any]) -> dict[str, Any]:
        if state:
            raise PrepareError(
                "prepare() got an optimizer that has stepped already, after its model had been prepared: under FSDP "
                "version 1 its state cannot be divided any more. Call prepare(model, optimizer) in one call, or load "
                "the optimizer's state after prepare()."
            )
        return state

    def _refuse_state(self, optimizer: torch.optim.Optimizer) -> None:
        raise PrepareError(
            f"prepare() got an {type(optimizer).__name__} whose state is that of whole parameters, after its model "
            "had been prepared and divided. Call prepare(model, optimizer) in one call, or load the optimizer's state "
            "after prepare()."
        )

    def _check_flat(self, optimizer: torch.optim.Optimizer) -> None:
        """Raises PrepareError where flat parameters cannot stand for the parameters that the optimizer was given."""
        stepped: dict[int, list[int]] = {}
        for index, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                flat = self.successors.find(parameter)
                if flat is not None:
                    stepped.setdefault(id(flat), []).append(index)
        for flat_id, groups in stepped.items():
            names = self._contents.get(flat_id, [])
            if len(set(groups)) > 1:
                raise PrepareError(
                    f"The optimizer has {len(optimizer.param_groups)} parameter groups; {sorted(set(groups))} of them "
                    f"step parameters of one flat parameter ({', '.join(names[:3])} …), which use_orig_params=False "
                    "makes of a unit. Use use_orig_params=True or fsdp_version=2, or put them into one group."
                )
            if names and len(groups) != len(names):
                raise PrepareError(
                    f"The optimizer steps {len(groups)} of the {len(names)} parameters in one flat parameter "
                    f"({', '.join(names[:3])} …), which use_orig_params=False makes of a unit: it would step all of "
                    "them. Use use_orig_params=True or fsdp_version=2, or give it all parameters of the unit."
                )

    # Stepping

    def no_sync(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        stack = self.paused_averages()
        wrapper = getattr(model, "_orig_mod", model)
        if isinstance(wrapper, FullyShardedDataParallel):
            stack.enter_context(wrapper.no_sync())
        return stack

    def part_of(self, models: list[torch.nn.Module]) -> Callable[[torch.Tensor], Part]:
        groups: dict[int, Any] = {}
        for model in models:
            if not hasattr(model, _GROUPS):
                model.__dict__[_GROUPS] = shard_groups(model)
            groups.update(getattr(model, _GROUPS))

        def part(parameter: torch.Tensor) -> Part:
            group = groups.get(id(parameter))
            gradient = parameter.grad
            local = parameter.new_empty(0) if gradient is None else gradient
            return local, () if group is None else (group,)

        return part

    def unwrap(self, model: torch.nn.Module) -> torch.nn.Module:
        return model.module if isinstance(model, FullyShardedDataParallel) else model

    def state(self) -> StateAdapter:
        from accelerate.strategies.fsdp1.state import Fsdp1StateAdapter

        return Fsdp1StateAdapter(whole=self.brings_together)
