"""fp8 training by torchao: linear layers whose matrix products run on 8-bit floats."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from accelerate import optional
from accelerate.logging import get_logger

if TYPE_CHECKING:
    from torchao.float8 import Float8LinearConfig

__all__ = [
    "convert_model_to_fp8_ao",
    "filter_first_and_last_linear_layers",
    "filter_linear_layers",
    "find_first_last_linear_layers",
    "has_ao_layers",
]

_MULTIPLE = 16
logger = get_logger(__name__)


def _linears(model: torch.nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]


def find_first_last_linear_layers(model: torch.nn.Module) -> tuple[str | None, str | None]:
    """The names of the first and the last linear layer, in order of definition; None where there is none."""
    names = _linears(model)
    return (names[0], names[-1]) if names else (None, None)


def filter_linear_layers(
    module: torch.nn.Module, fqn: str, first_layer_name: str | None = None, last_layer_name: str | None = None
) -> bool:
    """Whether a layer may be converted: a linear layer with both dimensions multiples of 16 (what fp8 matrix products
    need), other than the first and the last, which are the most sensitive to rounding."""
    if not isinstance(module, torch.nn.Linear) or fqn in (first_layer_name, last_layer_name):
        return False
    return module.in_features % _MULTIPLE == 0 and module.out_features % _MULTIPLE == 0


def filter_first_and_last_linear_layers(module: torch.nn.Module, fqn: str) -> bool:
    """The default filter for ``module``: everything eligible inside it but its first and last linear layer."""
    first, last = find_first_last_linear_layers(module)
    return filter_linear_layers(module, fqn, first_layer_name=first, last_layer_name=last)


def has_ao_layers(model: torch.nn.Module) -> bool:
    """Whether some layer was converted by torchao."""
    if not optional.available("torchao"):
        return False
    from torchao.float8.float8_linear import Float8Linear

    return any(isinstance(module, Float8Linear) for module in model.modules())


def _default_filter(model: torch.nn.Module) -> Callable[[torch.nn.Module, str], bool]:
    first, last = find_first_last_linear_layers(model)
    if len(_linears(model)) <= 2:
        # Leaving out the first and the last would leave nothing.
        return filter_linear_layers
    return partial(filter_linear_layers, first_layer_name=first, last_layer_name=last)


@optional.torchao_required
def convert_model_to_fp8_ao(
    model: torch.nn.Module,
    config: Float8LinearConfig | None = None,
    module_filter_func: Callable[[torch.nn.Module, str], bool] | None = None,
) -> torch.nn.Module:
    """The model with eligible linear layers converted, in place; parameters keep their names, dtype and identity.

    A module that is a linear layer itself comes back as another object. Says once which layers were converted.

    Raises:
        MissingPackageError: torchao is not installed.
    """
    from torchao.float8 import convert_to_float8_training

    chosen = module_filter_func or _default_filter(model)
    before = _linears(model)
    converted: list[str] = []

    def keep_track(module: torch.nn.Module, fqn: str) -> bool:
        take = chosen(module, fqn)
        if take and isinstance(module, torch.nn.Linear):
            converted.append(fqn)
        return take

    model = convert_to_float8_training(model, module_filter_fn=keep_track, config=config)
    left = [name for name in before if name not in converted]
    logger.info(
        "fp8 by torchao: %d of %d linear layers converted (%s); left as they are: %s.",
        len(converted),
        len(before),
        ", ".join(converted) or "none",
        ", ".join(left) or "none",
    )
    model.__dict__["_accelerate_fp8_layers"] = tuple(converted)
    return model


def default_config(handler: Any, device: torch.device) -> Any:
    """torchao's configuration: the handler's, else tensorwise dynamic scaling; emulated where the device has no fp8
    matrix products."""
    from torchao.float8 import Float8LinearConfig

    if handler is not None and getattr(handler, "config", None) is not None:
        return handler.config
    all_gather = getattr(handler, "enable_fsdp_float8_all_gather", None)
    pad = getattr(handler, "pad_inner_dim", None)
    capable = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)
    return Float8LinearConfig(
        enable_fsdp_float8_all_gather=bool(all_gather), pad_inner_dim=bool(pad), emulate=not capable
    )
