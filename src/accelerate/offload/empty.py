"""Models built without memory, or straight on a device."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from accelerate import env
from accelerate.offload.tensors import check_device_same

__all__ = ["init_empty_weights", "init_on_device"]


@contextmanager
def init_empty_weights(include_buffers: bool | None = None) -> Iterator[None]:
    """Models built within have their parameters on the meta device: a shape, no memory, no initialisation time.

    Buffers too with ``include_buffers`` (default: ACCELERATE_INIT_INCLUDE_BUFFERS, else no).
    """
    if include_buffers is None:
        include_buffers = env.flag("ACCELERATE_INIT_INCLUDE_BUFFERS")
    with init_on_device(torch.device("meta"), include_buffers=include_buffers):
        yield


@contextmanager
def init_on_device(device: torch.device, include_buffers: bool | None = None) -> Iterator[None]:
    """Models built within have their parameters on ``device``, and their buffers with ``include_buffers``."""
    if include_buffers is None:
        include_buffers = env.flag("ACCELERATE_INIT_INCLUDE_BUFFERS")
    with ExitStack() as stack:
        stack.enter_context(_registered_on(device, buffers=include_buffers))
        if device.type == "meta":
            stack.enter_context(_Unfilled())
        if include_buffers:
            stack.enter_context(device)
        yield


# Calls that fill a tensor at random. On the meta device they change nothing, and the first takes torch seconds: it
# loads the compiler's decompositions.
_FILLS = frozenset(
    f"{name}_"
    for name in [
        "bernoulli",
        "cauchy",
        "exponential",
        "geometric",
        "kaiming_normal",
        "kaiming_uniform",
        "log_normal",
        "normal",
        "orthogonal",
        "random",
        "sparse",
        "trunc_normal",
        "uniform",
        "xavier_normal",
        "xavier_uniform",
    ]
)


class _Unfilled(TorchFunctionMode):
    """Leaves out random initialisation of tensors without data."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if getattr(func, "__name__", "") in _FILLS:
            tensor = args[0] if args else given.get("tensor")
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "meta":
                return tensor
        return func(*args, **given)


@contextmanager
def _registered_on(device: torch.device, buffers: bool) -> Iterator[None]:
    """Moves parameters (and buffers) to ``device`` the moment a module registers them."""
    register_parameter = nn.Module.register_parameter
    register_buffer = nn.Module.register_buffer
    # A parameter that several modules register must stay one; weakly, so that its first memory is free to go.
    known: dict[int, tuple[weakref.ref[nn.Parameter], nn.Parameter]] = {}

    def parameter_on_device(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register_parameter(module, name, param)
        if param is None or check_device_same(param.device, device):
            return
        reference, moved = known.get(id(param), (None, None))
        if reference is None or reference() is not param:
            moved = _moved(param, device)
            known[id(param)] = (weakref.ref(param), moved)
        module._parameters[name] = moved

    def buffer_on_device(module: nn.Module, name: str, tensor: torch.Tensor | None, *args: Any, **kwargs: Any) -> None:
        register_buffer(module, name, tensor, *args, **kwargs)
        if tensor is not None and not check_device_same(tensor.device, device):
            module._buffers[name] = tensor.to(device)

    _set("register_parameter", parameter_on_device)
    if buffers:
        _set("register_buffer", buffer_on_device)
    try:
        yield
    finally:
        _set("register_parameter", register_parameter)
        _set("register_buffer", register_buffer)


def _set(name: str, method: Callable[..., None]) -> None:
    setattr(nn.Module, name, method)


def _moved(parameter: nn.Parameter, device: torch.device) -> nn.Parameter:
    settings = dict(vars(parameter))
    kind = type(parameter)
    if kind is not nn.Parameter:
        return kind(parameter.to(device), requires_grad=parameter.requires_grad, **settings)
    moved = nn.Parameter(parameter.to(device), requires_grad=parameter.requires_grad)
    vars(moved).update(settings)
    return moved
