"""``torch.compile``, of a whole model or of its repeated blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from accelerate.transforms.base import PrepareContext

__all__ = [
    "apply_regions",
    "apply_whole",
    "compile_regions",
    "compile_regions_deepspeed",
    "compile_regions_fsdp2",
    "has_compiled_regions",
    "is_compiled_module",
]


def is_compiled_module(module: torch.nn.Module) -> bool:
    """Whether this very module is the wrapper that ``torch.compile`` returns."""
    from torch._dynamo.eval_frame import OptimizedModule

    return isinstance(module, OptimizedModule)


def has_compiled_regions(module: torch.nn.Module) -> bool:
    """Whether some submodule, but not the module itself, is compiled."""
    if is_compiled_module(module):
        return False
    return any(
        is_compiled_module(child) or getattr(child, "_compiled_call_impl", None) is not None
        for child in module.modules()
        if child is not module
    )


def repeated_blocks(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Every block that stands in a ModuleList whose items share one class: the regions that compile once and serve many
    times."""
    found: list[torch.nn.Module] = []
    for parent in module.modules():
        if not isinstance(parent, (torch.nn.ModuleList, torch.nn.ModuleDict)):
            continue
        children = list(parent.children())
        if len(children) > 1 and len({type(child) for child in children}) == 1:
            found.extend(children)
    return found


def compile_regions(module: torch.nn.Module, **compile_kwargs: Any) -> torch.nn.Module:
    """The same model with every repeated block compiled in place; compiled whole where nothing repeats.

    Blocks of one class share their compiled code, so a deep model starts about as fast as one block. Parameter names
    and ``state_dict`` keys stay as they are.
    """
    blocks = repeated_blocks(module)
    if not blocks:
        return torch.compile(module, **compile_kwargs)  # type: ignore[return-value]
    for child in blocks:
        child.compile(**compile_kwargs)
    return module


def compile_regions_fsdp2(module: torch.nn.Module, **compile_kwargs: Any) -> torch.nn.Module:
    """The same object with its repeated blocks compiled in place, or the whole of it where nothing repeats: for an
    engine that goes on to change this very module, as ``fully_shard`` does."""
    for part in repeated_blocks(module) or [module]:
        part.compile(**compile_kwargs)
    return module


def compile_regions_deepspeed(module: torch.nn.Module, **compile_kwargs: Any) -> None:
    """Compiles in place as :func:`compile_regions_fsdp2` does: ``module`` may be an engine or what is inside it."""
    compile_regions_fsdp2(getattr(module, "module", module), **compile_kwargs)


def _kwargs(ctx: PrepareContext) -> dict[str, Any] | None:
    plugin = ctx.settings.get("dynamo")
    if plugin is None or str(getattr(plugin.backend, "value", plugin.backend)).upper() == "NO":
        return None
    kwargs: dict[str, Any] = dict(plugin.to_kwargs())
    kwargs.pop("use_regional_compilation", None)
    return kwargs


def apply_regions(model: torch.nn.Module, ctx: PrepareContext) -> torch.nn.Module:
    """Compiles repeated blocks where the dynamo plugin asks for regions."""
    kwargs = _kwargs(ctx)
    if kwargs is None or not ctx.settings["dynamo"].use_regional_compilation:
        return model
    return compile_regions(model, **kwargs)


def apply_whole(model: torch.nn.Module, ctx: PrepareContext) -> torch.nn.Module:
    """Compiles the wrapped model where the dynamo plugin asks for it."""
    kwargs = _kwargs(ctx)
    if kwargs is None or ctx.settings["dynamo"].use_regional_compilation or is_compiled_module(model):
        return model
    return torch.compile(model, **kwargs)  # type: ignore[return-value]
