"""Questions about a model as a tree of modules."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Literal, overload

from torch import nn

__all__ = [
    "get_model_tp_size",
    "get_module_children_bottom_up",
    "has_4bit_bnb_layers",
    "has_transformer_engine_layers",
    "is_peft_model",
    "model_has_dtensor",
]


def model_has_dtensor(model: nn.Module) -> bool:
    """Whether a parameter is a DTensor: sharded or replicated over a device mesh."""
    module = sys.modules.get("torch.distributed.tensor")
    if module is None:  # nobody can have made one
        return False
    return any(isinstance(parameter, module.DTensor) for parameter in model.parameters())


def get_model_tp_size(model: nn.Module) -> int | None:
    """Over how many ranks a model that arrived sharded by tensor parallelism is, or None.

    A library says so with ``tp_size`` on the model; otherwise the mesh of its DTensor parameters does.
    """
    told = getattr(model, "tp_size", None)
    if told is not None:
        return int(told)
    module = sys.modules.get("torch.distributed.tensor")
    if module is None:
        return None
    for parameter in model.parameters():
        if isinstance(parameter, module.DTensor):
            mesh: Any = parameter.device_mesh
            names = mesh.mesh_dim_names or ()
            if "tp" in names:
                return int(mesh["tp"].size())
    return None


@overload
def get_module_children_bottom_up(model: nn.Module, return_fqns: Literal[False] = False) -> list[nn.Module]: ...
@overload
def get_module_children_bottom_up(model: nn.Module, return_fqns: Literal[True]) -> list[tuple[str, nn.Module]]: ...
def get_module_children_bottom_up(model: nn.Module, return_fqns: bool = False) -> list[Any]:
    """Every module of a model, each after all that are inside of it; the model itself is last.

    With ``return_fqns``, pairs of full name and module.
    """
    named = [*_below(model, ""), ("", model)]
    return named if return_fqns else [module for _, module in named]


def _below(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        yield from _below(child, f"{prefix}{name}.")
        yield f"{prefix}{name}", child


def is_peft_model(model: Any) -> bool:
    """Whether this is a PEFT model, under whatever wrapper. Does not import PEFT."""
    peft = sys.modules.get("peft")
    if peft is None:
        return False
    seen = set()
    while model is not None and id(model) not in seen:
        if isinstance(model, peft.PeftModel):
            return True
        seen.add(id(model))
        model = getattr(model, "module", None) or getattr(model, "_orig_mod", None)
    return False


def _has_layers(model: nn.Module, library: str, names: tuple[str, ...]) -> bool:
    loaded = sys.modules.get(library)  # a model cannot have layers of a library that nobody imported
    if loaded is None:
        return False
    kinds = tuple(kind for name in names if (kind := getattr(loaded, name, None)) is not None)
    return any(isinstance(module, kinds) for module in model.modules())


def has_4bit_bnb_layers(model: nn.Module) -> bool:
    """Whether the model has 4-bit layers of bitsandbytes."""
    return _has_layers(model, "bitsandbytes.nn", ("Linear4bit",))


def has_transformer_engine_layers(model: nn.Module) -> bool:
    """Whether the model has layers of Transformer Engine."""
    return _has_layers(model, "transformer_engine.pytorch", ("LayerNorm", "Linear", "TransformerLayer"))
