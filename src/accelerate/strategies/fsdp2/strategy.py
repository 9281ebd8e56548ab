"""FSDP version 2: parameters are DTensors, the model keeps its class and its names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

from accelerate.errors import PrepareError
from accelerate.strategies.fsdp2 import weights
from accelerate.strategies.fsdp2.shard import fsdp_modules, offload_policy, set_prefetch, shard
from accelerate.strategies.sharded.deferred import Initializer, same_randomness
from accelerate.strategies.sharded.held import let_go
from accelerate.strategies.sharded.source import Findings, Source
from accelerate.strategies.sharded.strategy import ShardedStrategy
from accelerate.strategies.sharded.successors import shard_state

if TYPE_CHECKING:
    from accelerate.checkpoint.adapter import StateAdapter

__all__ = ["Fsdp2Strategy"]

# Kept on a model: looking for them in a deep model costs more than a micro-batch should.
_DIVIDED = "_accelerate_fsdp_modules"


class Fsdp2Strategy(ShardedStrategy):
    """``torch.distributed.fsdp.fully_shard`` on the units of a model and on the model itself."""

    name = "fsdp2"

    def public_prepare(self) -> tuple[str, Any]:
        from accelerate.strategies.fsdp2.by_hand import fsdp2_prepare_model

        return fsdp2_prepare_model.__name__, fsdp2_prepare_model

    def check_model(self, model: torch.nn.Module) -> None:
        if any(isinstance(module, FSDPModule) for module in model.modules()):
            raise PrepareError(
                f"prepare() got a {type(model).__name__} to which fully_shard was applied already. Give the model as "
                "it was before; prepare() divides it."
            )

    def convert_state(self, old: torch.Tensor, new: torch.Tensor, state: dict[str, Any]) -> dict[str, Any]:
        return shard_state(old, new, state)

    def divide(
        self,
        model: torch.nn.Module,
        units: list[torch.nn.Module],
        findings: Findings,
        left_out: set[torch.nn.Parameter],
    ) -> torch.nn.Module:
        offload = offload_policy(self.options.cpu_offload, self.runtime.device)
        kwargs: dict[str, Any] = {
            "mesh": self.mesh,
            "reshard": self.options.reshard_after_forward,
            "mixed_precision": self._mixed_precision(),
            "offload": offload,
            "ignored": left_out,
        }
        held: dict[str, torch.Tensor] = {}
        if findings.source is Source.FIRST_RANK:
            held = let_go(model, self.mesh, left_out)
            shard(model, units, **kwargs)
            device = torch.device("cpu") if hasattr(offload, "pin_memory") else self.runtime.device
            names = weights.make_room(model, device)
            weights.fill(model, held, names)
        elif findings.deferred:
            initialize = Initializer(model, self.runtime.device, self.options.param_init_fn)
            with same_randomness(self.mesh, self.runtime.device):
                shard(model, units, before=initialize.through, **kwargs)
        else:
            shard(model, units, **kwargs)
        set_prefetch(units, forward=bool(self.options.forward_prefetch))
        model.__dict__[_DIVIDED] = tuple(fsdp_modules(model))
        return model

    def _mixed_precision(self) -> MixedPrecisionPolicy | None:
        policy = self.options.mixed_precision_policy
        return policy if isinstance(policy, MixedPrecisionPolicy) else None

    def no_sync(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        modules = getattr(model, _DIVIDED, None)
        if modules is None:  # divided by somebody else's function
            modules = model.__dict__[_DIVIDED] = tuple(fsdp_modules(model))
        if not modules and not self.averages:
            return nullcontext()
        return self._without_sync(modules)

    @contextmanager
    def _without_sync(self, modules: tuple[FSDPModule, ...]) -> Iterator[None]:
        with self.paused_averages():
            for module in modules:
                module.set_requires_gradient_sync(False, recurse=False)
            try:
                yield
            finally:
                for module in modules:
                    module.set_requires_gradient_sync(True, recurse=False)

    def unwrap(self, model: torch.nn.Module) -> torch.nn.Module:
        return model

    def state(self) -> StateAdapter:
        from accelerate.strategies.fsdp2.state import Fsdp2StateAdapter

        return Fsdp2StateAdapter(whole=self.brings_together)
