"""Which engines a loss comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from accelerate.strategies.deepspeed.handle import DeepSpeedEngineWrapper

__all__ = ["handles_of"]


def handles_of(loss: torch.Tensor, handles: list[DeepSpeedEngineWrapper]) -> list[DeepSpeedEngineWrapper]:
    """The engines whose parameters ``loss`` depends on, in their order. The graph is looked at only where several ran
    since their last backward."""
    if len(handles) <= 1:
        return list(handles)
    ran = [handle for handle in handles if handle.ran]
    if len(ran) == 1:
        return ran
    candidates = ran or handles
    owners = {
        id(parameter): handle
        for handle in candidates
        for parameter in handle.engine.module.parameters()
        if parameter.requires_grad
    }
    found: dict[int, DeepSpeedEngineWrapper] = {}
    stack, seen = [loss.grad_fn], set()
    while stack and len(found) < len(candidates):
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        owner = owners.get(id(getattr(node, "variable", None)))
        if owner is not None:
            found[id(owner)] = owner
        stack.extend(following for following, _ in node.next_functions)
    return [handle for handle in candidates if id(handle) in found] or candidates[-1:]
