"""Which engine does fp8, and the one call that converts a model by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate import env, optional
from accelerate.errors import ConfigError, MissingPackageError, NotBuiltError
from accelerate.replaced import replacement

if TYPE_CHECKING:
    import torch

__all__ = ["backend_name", "convert"]

_KINDS = {"AORecipeKwargs": "AO", "TERecipeKwargs": "TE", "MSAMPRecipeKwargs": "MSAMP"}
_PACKAGES = {"AO": "torchao", "TE": "transformer_engine", "MSAMP": "msamp"}


def _asked(handler: Any) -> str | None:
    """The back end that the handler or the launch names; None where it is left to us."""
    if handler is not None:
        named = getattr(handler, "backend", None)
        found = str(named).upper() if named else _KINDS.get(type(handler).__name__)
        if found is not None:
            return found
    named = env.get("ACCELERATE_FP8_BACKEND")
    return named.upper() if named else None


def backend_name(handler: Any) -> str:
    """ "AO", "TE" or "MSAMP": the one asked for, else the first that is installed.

    Raises:
        ConfigError: the name is not one of these.
        MissingPackageError: the one asked for, or every one, is not installed.
    """
    asked = _asked(handler)
    if asked is not None:
        if asked not in _PACKAGES:
            raise ConfigError(f"fp8 backend {asked!r} is not known. Choose one of {', '.join(_PACKAGES)}.")
        optional.require(_PACKAGES[asked], f"mixed_precision='fp8' with backend {asked}")
        return asked
    for name, package in _PACKAGES.items():
        if optional.available(package):
            return name
    raise MissingPackageError(
        "mixed_precision='fp8' was asked for, and no fp8 back end is installed. Install torchao (`pip install "
        "torchao`), which trains on any device, or use mixed_precision='bf16'."
    )


def convert(model: torch.nn.Module, handler: Any, *, device: torch.device) -> torch.nn.Module:
    """The model with linear layers that compute in fp8.

    Raises:
        NotBuiltError: the back end is known but not built yet.
    """
    name = backend_name(handler)
    if name != "AO":
        raise NotBuiltError(
            f"fp8 backend {name!r} was asked for, and only AO (torchao) is built so far. Pass "
            "kwargs_handlers=[AORecipeKwargs()] or set fp8_backend: ao."
        )
    from accelerate.precision.ao import convert_model_to_fp8_ao, default_config

    config = default_config(handler, device)
    theirs = replacement(
        "convert_model_to_fp8_ao", convert_model_to_fp8_ao, "accelerate.accelerator", "accelerate.utils"
    )
    return (theirs or convert_model_to_fp8_ao)(
        model, config=config, module_filter_func=getattr(handler, "module_filter_func", None)
    )
