"""What is left out of sharding: modules the user names, and scalars, which have no dimension to divide."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch

from accelerate.errors import ConfigError, PrepareError

__all__ = ["find_ignored", "ignored_parameters", "scalars"]


def find_ignored(model: torch.nn.Module, asked: Any) -> list[torch.nn.Module]:
    """The modules of ``model`` that ``asked`` names: modules, or a regular expression matched against whole names.

    Raises:
        ConfigError: the expression is malformed.
        PrepareError: it matches no module's name, or the model itself.
    """
    if asked is None:
        return []
    if not isinstance(asked, str):
        inside = set(model.modules())
        return [module for module in asked if module in inside]
    try:
        pattern = re.compile(asked)
    except re.error as error:
        raise ConfigError(
            f"ignored_modules={asked!r} is no regular expression ({error}). Give one that matches the whole names of "
            "the modules to leave out, or the modules themselves."
        ) from error
    found = [(name, module) for name, module in model.named_modules() if pattern.fullmatch(name)]
    if any(module is model for _, module in found):
        raise PrepareError(
            f"ignored_modules={asked!r} matches the whole model, so nothing would be sharded. Give an expression that "
            "needs at least one character."
        )
    if not found:
        names = [name for name, _ in model.named_modules() if name]
        raise PrepareError(
            f"ignored_modules={asked!r} matches no module of {type(model).__name__}. It is matched against whole names "
            f"such as {', '.join(names[:3])}; write '.*lm_head' for a module at any depth."
        )
    return [module for _, module in found]


def ignored_parameters(modules: Iterable[torch.nn.Module]) -> set[torch.nn.Parameter]:
    """Every parameter in these modules and below."""
    return {parameter for module in modules for parameter in module.parameters()}


def scalars(model: torch.nn.Module) -> set[torch.nn.Parameter]:
    """Parameters without a dimension; the engines refuse them."""
    return {parameter for parameter in model.parameters() if parameter.dim() == 0}
