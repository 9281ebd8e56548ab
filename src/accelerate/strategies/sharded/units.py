"""Which modules become units: what is gathered, computed and freed together.

Both versions are given the same units, so a model is divided the same way under either.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.distributed.fsdp.wrap import _Policy

from accelerate.logging import get_logger

__all__ = ["choose_units", "members", "outermost", "part_frozen", "policy_for", "policy_picks", "post_order"]

log = get_logger(__name__)

_WRAPPER_CHILD = ("_orig_mod", "_checkpoint_wrapped_module")


def policy_for(plugin: Any, model: torch.nn.Module) -> Any | None:
    """The plugin's wrap policy completed for this model. The plugin keeps what the user wrote, for the next model."""
    own = copy.copy(plugin)
    own.set_auto_wrap_policy(model)
    return own.auto_wrap_policy


def choose_units(
    model: torch.nn.Module, policy: Any | None, ignored: Iterable[torch.nn.Parameter] = ()
) -> list[torch.nn.Module]:
    """The submodules that become units of their own, children before parents; the model itself is not among them.

    ``policy`` is None (no unit but the model), a function of torch's wrap protocol
    (``policy(module=, recurse=, nonwrapped_numel=) -> bool``) or a policy object of ``torch.distributed.fsdp.wrap``.
    Modules that share a parameter with a module outside are left in the unit around both.
    """
    if policy is None:
        return []
    left_out = set(ignored)
    picks = policy_picks(model, policy, left_out)
    picks = {outermost(model, module) for module in picks if _has_own_forward(module)}
    picks.discard(model)
    picks = _keep_shared_together(model, picks)
    picks = {module for module in picks if any(p not in left_out for p in module.parameters())}
    return [module for module in post_order(model) if module in picks]


def _has_own_forward(module: torch.nn.Module) -> bool:
    containers = (torch.nn.ModuleList, torch.nn.ModuleDict)
    return not (isinstance(module, containers) and type(module).forward is torch.nn.Module.forward)


def policy_picks(
    model: torch.nn.Module, policy: Any, ignored: set[torch.nn.Parameter] | None = None
) -> set[torch.nn.Module]:
    """The modules a policy names, before anything is known about containers, wrappers or shared parameters."""
    if isinstance(policy, _Policy):
        return set(policy._run_policy(model, set(), {}))
    picks: set[torch.nn.Module] = set()
    _visit(model, policy, ignored or set(), picks, set())
    picks.discard(model)
    return picks


def _visit(
    module: torch.nn.Module,
    policy: Callable[..., bool],
    ignored: set[torch.nn.Parameter],
    picks: set[torch.nn.Module],
    seen: set[torch.nn.Module],
) -> int:
    """Asks the policy about ``module`` and what is below it; returns how many elements are in units there."""
    if module in seen:
        return 0
    seen.add(module)
    total = sum(p.numel() for p in module.parameters() if p not in ignored)
    if not policy(module=module, recurse=True, nonwrapped_numel=total):
        return 0
    inside = sum(_visit(child, policy, ignored, picks, seen) for child in module.children())
    if policy(module=module, recurse=False, nonwrapped_numel=total - inside):
        picks.add(module)
        return total
    return inside


def outermost(model: torch.nn.Module, module: torch.nn.Module) -> torch.nn.Module:
    """The outermost wrapper (compiled, checkpointed) that stands around exactly this module inside ``model``."""
    parents = {
        child: parent for parent in model.modules() for name, child in parent.named_children() if name in _WRAPPER_CHILD
    }
    while module in parents:
        module = parents[module]
    return module


def post_order(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules of ``model``, children before parents, in order of registration."""
    order: list[torch.nn.Module] = []
    seen: set[torch.nn.Module] = set()

    def visit(module: torch.nn.Module) -> None:
        if module in seen:
            return
        seen.add(module)
        for child in module.children():
            visit(child)
        order.append(module)

    visit(model)
    return order


def part_frozen(
    model: torch.nn.Module, units: Iterable[torch.nn.Module], ignored: Iterable[torch.nn.Parameter] = ()
) -> list[torch.nn.Module]:
    """The units, and in those that hold frozen and trained parameters the trained leaves (adapters) as units too.

    Version 1 makes one tensor of a unit, whose whole gradient it holds: frozen weights would cost gradient memory.
    """
    units, left_out = list(units), set(ignored)
    held = members(model, units)
    owner = dict(zip((*units, model), held, strict=True))
    picks = set(units)
    for unit, parameters in owner.items():
        if len({p.requires_grad for p in parameters if p not in left_out}) < 2:
            continue
        own = set(parameters)
        for module in unit.modules():
            mine = list(module.parameters(recurse=False))
            leaf = module is not unit and mine and not any(True for _ in module.children())
            if leaf and all(p in own and p.requires_grad and p not in left_out for p in mine):
                picks.add(module)
    picks = _keep_shared_together(model, picks)
    return [module for module in post_order(model) if module in picks]


def members(model: torch.nn.Module, units: Iterable[torch.nn.Module]) -> list[list[torch.nn.Parameter]]:
    """The parameters of each unit that are in no unit below it, and last those that are left to the model itself."""
    placed: set[tuple[torch.nn.Module, torch.nn.Module]] = set()
    units = list(units)
    _place(model, model, set(units), placed)
    found: dict[torch.nn.Module, dict[torch.nn.Parameter, None]] = {unit: {} for unit in (*units, model)}
    for module, unit in placed:
        found[unit].update(dict.fromkeys(module.parameters(recurse=False)))
    return [list(parameters) for parameters in found.values()]


def _keep_shared_together(model: torch.nn.Module, picks: set[torch.nn.Module]) -> set[torch.nn.Module]:
    """Drops units until every parameter is registered in modules of one unit only.

    A unit replaces the parameter objects of its own modules. A module of another unit would keep the old object, and
    would go on training a copy that nothing reads.
    """
    picks = set(picks)
    while True:
        placed: set[tuple[torch.nn.Module, torch.nn.Module]] = set()
        _place(model, model, picks, placed)
        owners: dict[torch.nn.Parameter, set[torch.nn.Module]] = {}
        for module, unit in placed:
            for parameter in module.parameters(recurse=False):
                owners.setdefault(parameter, set()).add(unit)
        split = {unit for units in owners.values() if len(units) > 1 for unit in units if unit is not model}
        if not split:
            return picks
        names = sorted(name for name, module in model.named_modules() if module in split)
        log.warning_once(
            f"{', '.join(names[:4])}{' …' if len(names) > 4 else ''} share parameters with other modules, so they are "
            "not sharded as units of their own but together with the module around them."
        )
        picks -= split


def _place(
    module: torch.nn.Module,
    unit: torch.nn.Module,
    picks: set[torch.nn.Module],
    placed: set[tuple[torch.nn.Module, torch.nn.Module]],
) -> None:
    """Records (module, unit) for every path that leads to a module; one reached by two paths may be in two units."""
    unit = module if module in picks else unit
    if (module, unit) in placed:
        return
    placed.add((module, unit))
    for child in module.children():
        _place(child, unit, picks, placed)
