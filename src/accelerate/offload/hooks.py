"""Hooks: code that runs before and after a module's forward, and that comes off again without a trace.

A hooked module carries the hook as ``_hf_hook`` and its own forward as ``_old_forward``; other libraries read both.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

__all__ = [
    "ADDED_ATTRIBUTES",
    "ModelHook",
    "SequentialHook",
    "add_hook_to_module",
    "remove_hook_from_module",
    "remove_hook_from_submodules",
]

# Methods that a dispatched model gets for itself (see `accelerate.offload.dispatch`) and loses with its hooks.
ADDED_ATTRIBUTES = ["to", "cuda", "npu", "xpu", "mlu", "sdaa", "musa"]


class ModelHook:
    """What happens around a module's forward. A subclass overrides the calls it needs.

    ``no_grad`` runs the forward without gradients. Constructor arguments are kept under their own names: other
    libraries make a hook again from its attributes.
    """

    no_grad: bool = False

    def init_hook(self, module: nn.Module) -> nn.Module:
        """Called once when the hook is put on ``module``; returns the module to hook."""
        return module

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Called before each forward with its arguments; returns those to use."""
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        """Called after each forward with its output; returns the one to use."""
        return output

    def detach_hook(self, module: nn.Module) -> nn.Module:
        """Called once when the hook is taken off; undoes what ``init_hook`` did."""
        return module


class SequentialHook(ModelHook):
    """Several hooks on one module, run in their order before the forward and after it."""

    def __init__(self, *hooks: ModelHook) -> None:
        self.hooks = hooks
        self.no_grad = any(hook.no_grad for hook in hooks)

    def init_hook(self, module: nn.Module) -> nn.Module:
        for hook in self.hooks:
            module = hook.init_hook(module)
        return module

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        for hook in self.hooks:
            args, kwargs = hook.pre_forward(module, *args, **kwargs)
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        for hook in self.hooks:
            output = hook.post_forward(module, output)
        return output

    def detach_hook(self, module: nn.Module) -> nn.Module:
        for hook in self.hooks:
            module = hook.detach_hook(module)
        return module


def _hooked_forward(module: Any, *args: Any, **kwargs: Any) -> Any:
    """The forward of a hooked module. A function of the module alone, so that a deep copy hooks the copy."""
    hook = module._hf_hook
    args, kwargs = hook.pre_forward(module, *args, **kwargs)
    if hook.no_grad:
        with torch.no_grad():
            output = module._old_forward(*args, **kwargs)
    else:
        output = module._old_forward(*args, **kwargs)
    return hook.post_forward(module, output)


def add_hook_to_module(module: nn.Module, hook: ModelHook, append: bool = False) -> nn.Module:
    """Puts ``hook`` on a module, which is returned. It replaces a hook already there, or with ``append`` runs after it.

    A hook that is replaced is not detached: whoever replaces it takes over what it holds.
    """
    plain: Any = module
    held = plain.__dict__.get("_hf_hook")
    if held is None:
        plain._old_forward = plain.forward
    module = hook.init_hook(module)
    if module is not plain and held is None:
        plain.__dict__.pop("_old_forward", None)
        plain = module
        plain._old_forward = plain.forward
    if append and held is not None:
        before = held.hooks if isinstance(held, SequentialHook) else (held,)
        hook = SequentialHook(*before, hook)
    plain._hf_hook = hook
    # The wrapper keeps the signature of the forward, which trainers and exporters inspect.
    plain.forward = functools.update_wrapper(functools.partial(_hooked_forward, plain), plain._old_forward)
    return plain  # type: ignore[no-any-return]


def remove_hook_from_module(module: nn.Module, recurse: bool = False) -> nn.Module:
    """Takes the hook off a module, which gets back its forward and, where the hook offloaded them, its tensors.

    ``recurse`` does so for its children too.
    """
    own = module.__dict__
    if "_hf_hook" in own:
        own["_hf_hook"].detach_hook(module)
        del own["_hf_hook"]
    if "_old_forward" in own:
        forward = own.pop("_old_forward")
        own.pop("forward", None)
        if getattr(forward, "__func__", None) is not type(module).forward:
            own["forward"] = forward  # it was an attribute of the object before it was hooked
    for name in ADDED_ATTRIBUTES:
        own.pop(name, None)
    if recurse:
        for child in module.children():
            remove_hook_from_module(child, recurse)
    return module


def remove_hook_from_submodules(module: nn.Module) -> None:
    """Takes the hooks off a module and everything below it."""
    remove_hook_from_module(module, recurse=True)
