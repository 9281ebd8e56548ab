"""Accumulation windows: which micro-batches make one step, and by what their gradients are divided."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Window", "scale_gradients"]


@dataclass(slots=True)
class Window:
    """One run of micro-batches that ends in a step, for one set of models.

    A loss is divided by ``divisor`` as it comes, which is chosen when the window opens. Where the window turns out to
    have another length (an iterable that ended), or counts of items were given, the gradients are put right once,
    before anything looks at them: they are *owed* a factor until then.
    """

    models: tuple[torch.nn.Module, ...] = ()
    count: int = 0
    divisor: int = 1
    closed: bool = True
    items: list[Any] = field(default_factory=list)
    plain: bool = False

    def advance(self, length: int, last: bool) -> bool:
        """Takes in one micro-batch; ``length`` is the window's length if it opens now. Returns whether it closes."""
        if self.closed:
            self.count, self.divisor, self.plain = 0, length, False
            self.items.clear()
        self.count += 1
        self.closed = last or self.count >= self.divisor
        return self.closed

    def owed(self, reduce: Callable[[torch.Tensor], torch.Tensor], ranks: int, unit: float) -> float | None:
        """The factor that gradients of the closed window are owed, or None.

        With counts n of items: a loss was weighed by n / ``unit``, ranks were averaged, so the factor is
        ``unit * ranks / sum of all n`` (collective). Otherwise it is divisor / count where these differ.
        """
        if self.items:
            # float32: a count may be a weight, every device has it, and its rounding is that of the gradients.
            total = float(reduce(torch.tensor([sum(self.items)], dtype=torch.float32)).item())
            self.items.clear()
            return unit * ranks / total if total else None
        if self.count != self.divisor and self.count:
            factor = self.divisor / self.count
            self.divisor = self.count
            return factor
        return None


def scale_gradients(parameters: Iterable[torch.Tensor], factor: float) -> None:
    """Multiplies every gradient by ``factor``, each parameter once."""
    seen: set[int] = set()
    gradients = []
    for parameter in parameters:
        if parameter.grad is not None and id(parameter) not in seen:
            seen.add(id(parameter))
            gradients.append(parameter.grad)
    with torch.no_grad():
        for gradient in gradients:
            gradient.mul_(factor)
