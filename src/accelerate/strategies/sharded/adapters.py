"""Which tensors of a PEFT model are its adapter, and what PEFT calls them in a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from accelerate.checkpoint.naming import strip_markers

__all__ = ["adapter_names"]


@contextmanager
def _by_canonical_names(model: torch.nn.Module) -> Iterator[None]:
    """A context in which ``model`` tells its modules by the names they have without wrappers: PEFT picks by these."""
    own = model.named_modules

    def named_modules(*args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.nn.Module]]:
        return ((strip_markers(name), module) for name, module in own(*args, **kwargs))

    model.__dict__["named_modules"] = named_modules
    try:
        yield
    finally:
        del model.__dict__["named_modules"]


def adapter_names(model: torch.nn.Module, tensors: Mapping[str, Any]) -> dict[str, str]:
    """Name in a file → name in the model, for the tensors of the active adapter."""
    from peft import get_peft_model_state_dict  # type: ignore[import-not-found,unused-ignore]

    # PEFT renames and picks by name; stand-ins that are told apart by their value show which became which.
    order = list(tensors)
    marks = {name: torch.full((1,), index, dtype=torch.int64) for index, name in enumerate(order)}
    active = getattr(model, "active_adapter", "default")
    with _by_canonical_names(model):
        chosen = get_peft_model_state_dict(model, state_dict=marks, adapter_name=active, save_embedding_layers=False)
    known = {id(mark) for mark in marks.values()}
    if chosen and all(id(mark) in known for mark in chosen.values()):
        return {saved: order[int(mark)] for saved, mark in chosen.items()}
    # Prompts are no part of the state that PEFT picks from; what is trained is the adapter then.
    trained = {strip_markers(name) for name, parameter in model.named_parameters() if parameter.requires_grad}
    return {name: name for name in order if name in trained}
