"""Seeds: mixed so that neighbours do not resemble each other, and agreed on by the ranks."""

from __future__ import annotations

import base64

import torch

from accelerate.comm.base import Collectives

__all__ = ["agree", "decoded", "draw", "encoded", "mix"]

_WORD = (1 << 64) - 1


def mix(*parts: int) -> int:
    """A seed in [0, 2**63) that depends on every part. ``mix(s, e + 1)`` has nothing in common with ``mix(s + 1, e)``.

    The low 32 bits alone are well mixed too: torch's CPU generator looks at no others.
    """
    state = 0
    for part in parts:
        state = (state ^ (part & _WORD)) + 0x9E3779B97F4A7C15 & _WORD
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _WORD
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _WORD
        state ^= state >> 31
    return state >> 1


def draw(generator: torch.Generator | None = None) -> int:
    """The next number of ``generator``, or of torch's global one."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def agree(value: int, collectives: Collectives | None) -> int:
    """Collective where there are several ranks. Rank 0's ``value``."""
    if collectives is None or collectives.size == 1:
        return value
    return int(collectives.broadcast_objects([value])[0])


def encoded(state: torch.Tensor) -> str:
    """The state of a generator as text."""
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def decoded(state: str) -> torch.Tensor:
    """The reverse of :func:`encoded`."""
    return torch.frombuffer(bytearray(base64.b64decode(state)), dtype=torch.uint8)
