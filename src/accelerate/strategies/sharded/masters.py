"""The one rule for master weights: what is trained under mixed precision is kept in float32.

See docs/design/0004-master-weights.md. The precision computes in its own dtype from these; a model that was loaded in a
16-bit dtype is raised once, here, before anything is divided.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from accelerate.logging import get_logger

__all__ = ["even_out", "raise_masters"]

log = get_logger(__name__)

_LOW = (torch.float16, torch.bfloat16)


def _plain(parameter: torch.nn.Parameter) -> bool:
    """Whether a cast means the same numbers in another dtype: not so for packed (quantised) or wrapped tensors."""
    return type(parameter) is torch.nn.Parameter and type(parameter.data) is torch.Tensor


def raise_masters(model: torch.nn.Module, left_out: Iterable[torch.nn.Parameter] = ()) -> list[str]:
    """Casts trainable 16-bit parameters to float32 in place, says so once, and returns their names.

    Frozen parameters keep their dtype: nothing is added up in them. The parameter objects stay the same.
    """
    skip, raised, dtypes = set(left_out), [], set()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype in _LOW and parameter not in skip and _plain(parameter):
            dtypes.add(str(parameter.dtype).removeprefix("torch."))
            parameter.data = parameter.data.float()
            raised.append(name)
    if raised:
        log.warning_once(
            f"{type(model).__name__} was loaded in {' and '.join(sorted(dtypes))}. Under mixed precision the "
            "parameters that are trained are kept as float32 master weights, under every strategy, so that small "
            f"updates are not rounded away: {len(raised)} of them were raised to float32. Set mixed_precision='no' to "
            "train in the model's own dtype."
        )
    return raised


def even_out(units: Iterable[Iterable[torch.nn.Parameter]]) -> int:
    """Casts 16-bit parameters to float32 where their unit also holds float32 ones; returns how many were cast.

    Version 1 flattens a unit into one tensor, which has one dtype.
    """
    cast = 0
    for unit in units:
        parameters = [p for p in unit if p.is_floating_point()]
        if len({p.dtype for p in parameters}) < 2:
            continue
        for parameter in parameters:
            if parameter.dtype in _LOW and _plain(parameter):
                parameter.data = parameter.data.float()
                cast += 1
    return cast
