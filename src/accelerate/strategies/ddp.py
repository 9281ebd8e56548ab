"""Replicated training: every rank has the whole model, gradients are averaged (torch's DistributedDataParallel)."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from accelerate.checkpoint.plain import PlainStateAdapter
from accelerate.config.enums import DistributedType
from accelerate.errors import PrepareError
from accelerate.strategies.base import Capabilities, Strategy
from accelerate.strategies.comm_hooks import register_comm_hook

if TYPE_CHECKING:
    from accelerate.checkpoint.adapter import StateAdapter
    from accelerate.transforms.base import PrepareContext

__all__ = ["DdpStrategy"]

_UNFINISHED = "Expected to have finished reduction"


class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):
    """torch's wrapper; the error about unfinished reductions names the parameters."""

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        try:
            return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if _UNFINISHED not in str(error):
                raise
            raise PrepareError(_explain_unused(self.module, str(error))) from error


def _explain_unused(module: torch.nn.Module, message: str) -> str:
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    listed = re.search(r"did not receive grad for rank \d+: ([\d ,]+)", message)
    indices = [int(i) for i in re.findall(r"\d+", listed.group(1))] if listed else []
    names = [trained[i] for i in indices if i < len(trained)]
    which = f"{', '.join(names[:8])}{' …' if len(names) > 8 else ''}" if names else "some parameters"
    return (
        f"The last backward gave no gradient to {which}, so the ranks still wait for them. Leave these parameters out "
        "of the model or out of training (requires_grad_(False)), use them in the forward on every rank, or pass "
        "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)]). If the loss was "
        "computed from a part of the outputs only, that part must depend on every parameter."
    )


class DdpStrategy(Strategy[None]):
    """``DistributedDataParallel`` around every model that has something to train."""

    name = "ddp"
    caps = Capabilities(needs_group=True)

    def legacy_type(self, device_type: str) -> DistributedType:
        return DistributedType(f"MULTI_{'GPU' if device_type == 'cuda' else device_type.upper()}")

    def wrap_model(self, model: torch.nn.Module, ctx: PrepareContext) -> torch.nn.Module:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            return model
        if not any(parameter.requires_grad for parameter in model.parameters()):
            return model
        handler = ctx.settings.get("ddp")
        kwargs = dict(handler.to_kwargs()) if handler is not None else {}
        for name in ("comm_hook", "comm_wrapper", "comm_state_option"):
            kwargs.pop(name, None)
        device = ctx.runtime.device
        if device.type != "cpu" and ctx.place and not getattr(model, "hf_device_map", None):
            kwargs.update(device_ids=[device.index], output_device=device.index)
        with warnings.catch_warnings():
            # torch 2.13 renames the setting; the old one alone also leaves buffers alone at the start.
            warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
            wrapped = DistributedDataParallel(model, **kwargs)
        if handler is not None:
            register_comm_hook(wrapped, handler)
        return wrapped

    def no_sync(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        wrapper = getattr(model, "_orig_mod", model)
        if not isinstance(wrapper, torch.nn.parallel.DistributedDataParallel):
            return nullcontext()
        return wrapper.no_sync()

    @contextmanager
    def trigger_sync(self, model: torch.nn.Module) -> Iterator[None]:
        wrapper: Any = getattr(model, "_orig_mod", model)
        if not isinstance(wrapper, torch.nn.parallel.DistributedDataParallel):
            yield
            return
        before = wrapper.require_backward_grad_sync
        wrapper.require_backward_grad_sync = True
        # What forward() does when it knows that a reduction follows: every parameter is expected.
        wrapper.reducer.prepare_for_backward([])
        try:
            yield
        finally:
            wrapper.require_backward_grad_sync = before

    def unwrap(self, model: torch.nn.Module) -> torch.nn.Module:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            return model.module  # type: ignore[no-any-return]
        return model

    def state(self) -> StateAdapter:
        return PlainStateAdapter(self.unwrap)
