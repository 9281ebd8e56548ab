"""From the names of layer classes to a policy that says which modules become units."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from accelerate.config.notice import notice
from accelerate.errors import ConfigError

__all__ = [
    "get_module_class_from_name",
    "layer_classes",
    "layer_policy",
    "policy_function",
    "policy_name",
    "size_policy",
]


def get_module_class_from_name(module: Any, name: str) -> type | None:
    """The class called ``name`` of the module or of one inside it, or None."""
    if type(module).__name__ == name:
        return type(module)
    for child in module.children():
        found = get_module_class_from_name(child, name)
        if found is not None:
            return found
    return None


def layer_classes(model: Any, names: Iterable[str] | None) -> set[type]:
    """The classes of a model's layers by name; without names, those that a transformers model lists itself.

    A model that lists none is one unit as a whole, which is said once.

    Raises:
        ConfigError: a name that was given is not in the model.
    """
    found: set[type] = set()
    for name in names or ():
        layer = get_module_class_from_name(model, name)
        if layer is None:
            present = sorted({type(module).__name__ for module in model.modules()})
            raise ConfigError(
                f"Layer class {name!r} is to become a unit, but {type(model).__name__} has none. "
                f"It has {', '.join(present)}."
            )
        found.add(layer)
    if names:
        return found
    for name in sorted(getattr(model, "_no_split_modules", None) or ()):
        layer = get_module_class_from_name(model, name)
        if layer is not None:
            found.add(layer)
    if not found:
        notice(
            f"Units by layer class were asked for (TRANSFORMER_BASED_WRAP), but {type(model).__name__} does not list "
            "its layers, so it becomes one unit. To cut it, name them: transformer_cls_names_to_wrap=['MyLayer'], or "
            "--fsdp_transformer_layer_cls_to_wrap MyLayer."
        )
    return found


def policy_function(word: str) -> Callable[..., Any] | None:
    """torch's policy for a word of FSDP_AUTO_WRAP_POLICY."""
    from torch.distributed.fsdp import wrap

    functions: dict[str, Callable[..., Any] | None] = {
        "TRANSFORMER_BASED_WRAP": wrap.transformer_auto_wrap_policy,
        "SIZE_BASED_WRAP": wrap.size_based_auto_wrap_policy,
        "NO_WRAP": None,
    }
    return functions[word]


def policy_name(policy: Any) -> str | None:
    """The word for one of torch's policies that has not met its model yet, or None for any other callable."""
    from torch.distributed.fsdp import wrap

    if policy is wrap.transformer_auto_wrap_policy:
        return "TRANSFORMER_BASED_WRAP"
    return "SIZE_BASED_WRAP" if policy is wrap.size_based_auto_wrap_policy else None


def layer_policy(classes: set[type]) -> Callable[..., Any]:
    """A policy that makes a unit of every module of these classes."""
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    return functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=classes)


def size_policy(min_num_params: int) -> Callable[..., Any]:
    """A policy that makes units of at least so many parameters."""
    from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

    return functools.partial(size_based_auto_wrap_policy, min_num_params=min_num_params)
