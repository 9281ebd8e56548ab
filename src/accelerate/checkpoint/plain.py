"""State of models that every rank has whole: one process, or replicas."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from accelerate.checkpoint.adapter import LoadReport, ModelState, OptimizerState, StateAdapter
from accelerate.checkpoint.naming import canonical_map, parameter_names
from accelerate.checkpoint.optimizer_state import from_torch_layout, restore
from accelerate.errors import CheckpointMismatchError

__all__ = ["PlainStateAdapter", "check_tensors", "raise_mismatch", "tied_names"]

_EXTRA = "_extra_state"
_LARGE = 1 << 16  # elements that are worth a thread


def tied_names(tensors: Mapping[str, torch.Tensor], last_choice: Iterable[str] = ()) -> dict[str, str]:
    """Name → the name kept, for every name whose tensor is the very memory of another one's.

    The first name is kept; one that matches a pattern in ``last_choice`` only where there is no other. Views that
    overlap without being equal are not tied: each is written whole.
    """
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.device.type == "meta" or tensor.numel() == 0:
            continue
        key = (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        groups.setdefault(key, []).append(name)
    patterns = [re.compile(pattern) for pattern in last_choice]
    aliases: dict[str, str] = {}
    for names in groups.values():
        if len(names) > 1:
            kept = min(names, key=lambda name: (any(p.search(name) for p in patterns), names.index(name)))
            aliases.update((name, kept) for name in names if name != kept)
    return aliases


def check_tensors(
    expected: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor], aliases: Mapping[str, str], what: str
) -> LoadReport:
    """What would be restored where ``found`` is copied into ``expected``; nothing is changed.

    A name is also given where the one it is tied to is. Names whose shapes differ are both missing and unexpected.
    ``what`` names the object in messages.
    """
    misfit = {n for n, t in expected.items() if n in found and tuple(found[n].shape) != tuple(t.shape)}
    given = {name for name in expected if name in found and name not in misfit}
    kept = {aliases.get(name, name) for name in given}
    missing = [name for name in expected if name not in given and aliases.get(name, name) not in kept]
    unexpected = [name for name in found if name not in expected or name in misfit]
    return LoadReport(
        restored=tuple(name for name in expected if name in given),
        missing=tuple(f"{what}: {name} {_shape(expected[name])}" for name in missing),
        unexpected=tuple(f"{what}: {name} {_shape(found[name])}" for name in unexpected),
    )


def _shape(tensor: torch.Tensor) -> str:
    return str(tuple(tensor.shape))


def raise_mismatch(report: LoadReport, what: str) -> None:
    """Raises CheckpointMismatchError that lists both sides of a report which is not clean."""
    if not report.missing and not report.unexpected:
        return
    raise CheckpointMismatchError(
        f"The checkpoint does not fit {what}; nothing was changed.\n"
        f"  expected and not found: {_listed(report.missing)}\n"
        f"  found and not expected: {_listed(report.unexpected)}\n"
        "Load it into the objects it was saved from, or pass strict=False to restore what fits."
    )


def _listed(names: Sequence[str], most: int = 20) -> str:
    if not names:
        return "nothing"
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


class PlainStateAdapter(StateAdapter):
    """Reads and writes whole tensors in place.

    ``unwrap`` takes the strategy's own wrapper off a model (and returns the same object where there is none);
    ``torch.compile``'s wrapper is taken off here.
    """

    def __init__(self, unwrap: Callable[[torch.nn.Module], torch.nn.Module]) -> None:
        self._unwrap = unwrap

    def bare(self, model: torch.nn.Module) -> torch.nn.Module:
        """The user's own module."""
        while True:
            inner = self._unwrap(model)
            if inner is model:
                inner = model._modules.get("_orig_mod")  # type: ignore[assignment]
            if inner is None or inner is model:
                return model
            model = inner

    def _state(self, model: torch.nn.Module) -> tuple[torch.nn.Module, dict[str, Any], dict[str, str]]:
        bare = self.bare(model)
        state = bare.state_dict()
        return bare, state, canonical_map(bare, state)

    def model_state(self, model: torch.nn.Module) -> ModelState:
        bare, state, names = self._state(model)
        values = {name: state[raw] for name, raw in names.items()}
        tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
        aliases = tied_names(tensors, _discouraged(bare))
        extra = {name: value for name, value in values.items() if not isinstance(value, torch.Tensor)}
        return ModelState(
            tensors={name: tensor for name, tensor in tensors.items() if name not in aliases},
            aliases=aliases,
            metadata={"extra_state": extra} if extra else {},
        )

    def load_model_state(
        self, model: torch.nn.Module, tensors: Mapping[str, Any], *, strict: bool = True
    ) -> LoadReport:
        bare, state, names = self._state(model)
        expected = {name: state[raw] for name, raw in names.items() if isinstance(state[raw], torch.Tensor)}
        found = {name: value for name, value in tensors.items() if isinstance(value, torch.Tensor)}
        what = f"model {type(bare).__name__}"
        report = check_tensors(expected, found, tied_names(expected), what)
        if strict:
            raise_mismatch(report, what)
        values: dict[str, Any] = {names[name]: found[name] for name in report.restored}
        for raw in _copied(bare, {raw: (state[raw], value) for raw, value in values.items()}):
            del values[raw]
        values.update(
            (names[name], value)
            for name, value in tensors.items()
            if name in names and name.endswith(_EXTRA) and not isinstance(value, torch.Tensor)
        )
        bare.load_state_dict(values, strict=False)
        return report

    def optimizer_state(
        self, optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module | None]
    ) -> OptimizerState:
        names, named = parameter_names(optimizer, models)
        return from_torch_layout(optimizer.state_dict(), names, named)

    def load_optimizer_state(
        self,
        optimizer: torch.optim.Optimizer,
        models: Sequence[torch.nn.Module | None],
        state: OptimizerState,
        *,
        strict: bool = True,
    ) -> LoadReport:
        names, _ = parameter_names(optimizer, models)
        return restore(optimizer, names, state, strict=strict)

    def full_state_dict(self, model: torch.nn.Module, *, cpu: bool = True) -> dict[str, torch.Tensor]:
        bare, state, names = self._state(model)
        if any(isinstance(value, torch.Tensor) and value.is_meta for value in state.values()):
            from accelerate.offload.state import get_state_dict_offloaded_model

            state = get_state_dict_offloaded_model(bare)
        values = {name: state[raw] for name, raw in names.items()}
        if cpu:
            values = {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in values.items()}
        return values


def _copied(model: torch.nn.Module, pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> list[str]:
    """Copies large tensors side by side, of modules that load nothing in a way of their own; the names that are done.

    The rest, and every model with a hook on its loading, is for ``load_state_dict``.
    """
    modules = dict(model.named_modules())
    if any(m._load_state_dict_pre_hooks or m._load_state_dict_post_hooks for m in modules.values()):
        return []
    if type(model).load_state_dict is not torch.nn.Module.load_state_dict:
        return []
    chosen = [
        name
        for name, (old, new) in pairs.items()
        if new.numel() > _LARGE
        and old.is_cpu
        and new.is_cpu
        and type(old) is torch.Tensor
        # Views of one memory would be written from two threads.
        and old.is_contiguous()
        and _loads_plainly(modules.get(name.rpartition(".")[0]))
    ]
    taken: set[int] = set()
    with ThreadPoolExecutor(2, thread_name_prefix="accelerate-load") as pool:
        futures = []
        for name in chosen:
            old, new = pairs[name]
            if old.data_ptr() not in taken:
                taken.add(old.data_ptr())
                futures.append(pool.submit(_copy, old, new))
        for future in futures:
            future.result()
    return chosen


def _copy(old: torch.Tensor, new: torch.Tensor) -> None:
    with torch.no_grad():  # which is a thread's own affair
        old.copy_(new)


def _loads_plainly(module: torch.nn.Module | None) -> bool:
    return module is not None and type(module)._load_from_state_dict is torch.nn.Module._load_from_state_dict


def _discouraged(model: torch.nn.Module) -> Iterable[str]:
    """Patterns of the names that a transformers model expects to be left out where weights are tied."""
    return list(getattr(model, "_tied_weights_keys", None) or ())
