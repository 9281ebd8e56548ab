"""Modules that were built on the "meta" device: their weights are made when their unit is divided, not before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from accelerate.errors import PrepareError
from accelerate.strategies.sharded.agreement import broadcast
from accelerate.strategies.sharded.units import post_order

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Initializer", "has_deferred", "same_randomness"]

ParamInit = Callable[[torch.nn.Module], None]
_RESET = ("reset_parameters", "_reset_parameters")
_MARK = -0x5A5A5A5A  # what no initialisation leaves in a whole tensor of integers


def has_deferred(module: torch.nn.Module) -> bool:
    """Whether this very module holds a parameter or buffer without data."""
    own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    return any(tensor.is_meta for tensor in own)


class Initializer:
    """Gives modules without data their first weights, in the order in which a constructor would have.

    By ``param_init_fn`` where the plugin has one; else by the module's ``reset_parameters`` and the model's own
    ``_init_weights`` (transformers), on ``device``. Parameters that modules share stay shared.

    Raises:
        PrepareError: a module cannot make its weights, or left some of them unset.
    """

    def __init__(self, model: torch.nn.Module, device: torch.device, param_init_fn: ParamInit | None = None) -> None:
        self.device = device
        self.param_init_fn = param_init_fn
        self.model_init = getattr(model, "_init_weights", None)
        self.names = {module: name or type(model).__name__ for name, module in model.named_modules()}
        self.order = post_order(model)
        self.made: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
        if param_init_fn is None and not callable(self.model_init):
            _check_can_reset(model)

    def through(self, unit: torch.nn.Module) -> None:
        """Makes everything that is constructed before ``unit`` is complete, ``unit`` included."""
        for module in self.order[: self.order.index(unit) + 1]:
            if has_deferred(module):
                self._make(module)

    def _make(self, module: torch.nn.Module) -> None:
        before = dict(module.named_parameters(recurse=False))
        if self.param_init_fn is not None:
            self.param_init_fn(module)
        else:
            module.to_empty(device=self.device, recurse=False)
            _mark_unset(module)
            self._reset(module)
            self._check_set(module)
        self._keep_shared(module, before)

    def _reset(self, module: torch.nn.Module) -> None:
        with torch.no_grad():
            for name in _RESET:
                if callable(method := getattr(module, name, None)):
                    method()
                    break
            if callable(self.model_init):
                self.model_init(module)

    def _check_set(self, module: torch.nn.Module) -> None:
        left = _still_unset(module)
        if left:
            raise PrepareError(
                f"prepare() got a model on the 'meta' device, and {self.names[module]} ({type(module).__name__}) did "
                f"not set its {', '.join(left)}. Set them in its reset_parameters(), give the FSDP plugin a "
                "param_init_fn, or load the weights on the first rank (cpu_ram_efficient_loading=True)."
            )

    def _keep_shared(self, module: torch.nn.Module, before: dict[str, torch.nn.Parameter]) -> None:
        for name, old in before.items():
            if old in self.made:
                module._parameters[name] = self.made[old]
            else:
                new = module._parameters[name]
                assert new is not None
                self.made[old] = new


def _mark_unset(module: torch.nn.Module) -> None:
    with torch.no_grad():
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if tensor.is_floating_point() or tensor.is_complex():
                tensor.fill_(float("nan"))
            elif tensor.dtype in (torch.int32, torch.int64):
                tensor.fill_(_MARK)


def _still_unset(module: torch.nn.Module) -> list[str]:
    left = []
    for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
        if tensor.is_floating_point() or tensor.is_complex():
            unset = bool(tensor.isnan().any())
        else:
            unset = tensor.dtype in (torch.int32, torch.int64) and bool((tensor == _MARK).any())
        if unset:
            left.append(name)
    return left


def _check_can_reset(model: torch.nn.Module) -> None:
    stuck = [
        f"{name or 'the model itself'} ({type(module).__name__})"
        for name, module in model.named_modules()
        if has_deferred(module) and not any(callable(getattr(module, reset, None)) for reset in _RESET)
    ]
    if stuck:
        raise PrepareError(
            f"prepare() got a model on the 'meta' device, and {', '.join(stuck[:3])}{' …' if len(stuck) > 3 else ''} "
            "cannot make its own weights: it has no reset_parameters(). Write that method, give the FSDP plugin a "
            "param_init_fn, or load the weights on the first rank (cpu_ram_efficient_loading=True)."
        )


@contextmanager
def same_randomness(mesh: DeviceMesh, device: torch.device) -> Iterator[None]:
    """Collective over ``mesh``. Random numbers inside are the first rank's on every rank.

    Afterwards a rank whose generator stood elsewhere goes on from there; the others go on from what was drawn inside,
    as one process would.
    """
    before = torch.get_rng_state()
    state = before.clone()
    broadcast(state, mesh)
    same = torch.equal(state, before)
    seed = torch.tensor([torch.initial_seed() % (1 << 62)], dtype=torch.int64)
    broadcast(seed, mesh)
    accelerator = device.type not in ("cpu", "meta")
    with torch.random.fork_rng(
        devices=[device] if accelerator else [], device_type=device.type if accelerator else "cuda", enabled=accelerator
    ):
        if accelerator:
            getattr(torch, device.type).manual_seed(int(seed))
        torch.set_rng_state(state)
        try:
            yield
        finally:
            if not same:
                torch.set_rng_state(before)
