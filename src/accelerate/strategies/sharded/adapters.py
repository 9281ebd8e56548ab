"""Which tensors of a PEFT model are its adapter, and what PEFT calls them in a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["adapter_names"]


def adapter_names(model: torch.nn.Module, tensors: Mapping[str, Any]) -> dict[str, str]:
    """Name in a file → name in the model, for the tensors of the active adapter."""
    from peft import get_peft_model_state_dict  # type: ignore[import-not-found,unused-ignore]

    # PEFT renames and picks by name; stand-ins that are told apart by their value show which became which.
    order = list(tensors)
    marks = {name: torch.full((1,), index, dtype=torch.int64) for index, name in enumerate(order)}
    active = getattr(model, "active_adapter", "default")
    chosen = get_peft_model_state_dict(model, state_dict=marks, adapter_name=active, save_embedding_layers=False)
    return {saved: order[int(mark)] for saved, mark in chosen.items()}
