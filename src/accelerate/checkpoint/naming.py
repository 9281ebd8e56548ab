"""Names of parameters that stay the same whatever wraps the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = [
    "canonical_map",
    "canonical_name",
    "canonical_parameters",
    "describe_class",
    "parameter_names",
    "strip_markers",
]

# Segments that only a wrapper puts into a name; no model of a user's own has them.
_MARKERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
# Wrappers that keep the model under the plain word "module", which a model may use itself.
_HOLDERS = frozenset({"DataParallel", "DistributedDataParallel", "DeepSpeedEngine"})


def strip_markers(name: str) -> str:
    """``name`` without the segments of ``torch.compile``, FSDP 1 and activation checkpointing, wherever they stand."""
    if "_orig_mod" not in name and "_wrapped_module" not in name:
        return name
    return ".".join(part for part in name.split(".") if part not in _MARKERS)


def canonical_name(name: str) -> str:
    """``name`` without any wrapper's segment, and without ``module.`` in front.

    For comparing names when the model is not at hand. A model with a submodule of its own called ``module`` keeps that
    segment only in :func:`canonical_map`, which looks at the modules.
    """
    name = strip_markers(name)
    while name.startswith("module."):
        name = name[len("module.") :]
    return name


def _holder_paths(model: torch.nn.Module) -> set[str]:
    """Paths of submodules that are wrappers with the wrapped model under ``module``."""
    return {
        path for path, module in model.named_modules() if any(cls.__name__ in _HOLDERS for cls in type(module).__mro__)
    }


def _renamer(model: torch.nn.Module) -> Callable[[str], str]:
    holders = _holder_paths(model)
    if not holders:
        return strip_markers

    def rename(name: str) -> str:
        parts = name.split(".")
        kept = [
            part
            for index, part in enumerate(parts)
            if part not in _MARKERS and not (part == "module" and ".".join(parts[:index]) in holders)
        ]
        return ".".join(kept)

    return rename


def canonical_map(model: torch.nn.Module, names: Iterable[str]) -> dict[str, str]:
    """Canonical name → the name as ``model`` has it now, for the ``names`` of its state."""
    rename = _renamer(model)
    return {rename(name): name for name in names}


def canonical_parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """(canonical name, parameter) of every parameter; a tied one comes once, under its first name."""
    rename = _renamer(model)
    for name, parameter in model.named_parameters():
        yield rename(name), parameter


def parameter_names(
    optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module | None]
) -> tuple[list[list[str]], bool]:
    """The canonical names of the parameters of every group, and whether all of them were found in ``models``.

    Where the optimizer steps parameters of several models, a name is ``"<index in models>/<name>"``. A parameter of no
    model is ``"<group>.<index in group>"``. None in ``models`` keeps a place.
    """
    owners: dict[int, tuple[int, str]] = {}
    for index, model in enumerate(models):
        if model is not None:
            for name, parameter in canonical_parameters(model):
                owners.setdefault(id(parameter), (index, name))
    found = [[owners.get(id(p)) for p in group["params"]] for group in optimizer.param_groups]
    several = len({owner[0] for group in found for owner in group if owner is not None}) > 1
    names = [
        [
            f"{g}.{i}" if owner is None else f"{owner[0]}/{owner[1]}" if several else owner[1]
            for i, owner in enumerate(group)
        ]
        for g, group in enumerate(found)
    ]
    return names, all(owner is not None for group in found for owner in group)


def describe_class(obj: Any) -> str:
    """``module.Class`` of an object, as it is written into a checkpoint; the class that a model had before
    ``fully_shard`` changed it."""
    own, *bases = type(obj).__mro__
    cls = bases[1] if len(bases) > 1 and bases[0].__name__ == "FSDPModule" else own
    return f"{cls.__module__}.{cls.__qualname__}"
