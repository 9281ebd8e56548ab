"""Ranks that train apart and meet now and then.

Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", 2018.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from accelerate import runtime
from accelerate.errors import PrepareError

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["LocalSGD"]


class LocalSGD:
    """A context in which gradients stay local, and parameters are averaged over the ranks every few steps.

    Collective: every rank enters it, calls :meth:`step` as often, and leaves it (leaving averages once more).

    Args:
        accelerator: The Accelerator that prepared ``model``.
        model: A prepared model that every rank holds whole.
        local_sgd_steps: Optimizer steps from one averaging to the next.
        enabled: False makes the context do nothing.

    Raises:
        PrepareError: the strategy shards the model, so that there is nothing local to train.
    """

    def __init__(self, accelerator: Any, model: torch.nn.Module, local_sgd_steps: int, enabled: bool = True) -> None:
        strategy = runtime.current().strategy
        caps = strategy.caps if strategy is not None else None
        if enabled and caps is not None and (caps.sharded_state or caps.owns_backward):
            raise PrepareError(
                f"LocalSGD was asked for under strategy {strategy.name!r}, which spreads one model over the ranks. "  # type: ignore[union-attr]
                "Use it with DDP, or pass enabled=False."
            )
        if enabled and local_sgd_steps < 1:
            raise ValueError(f"local_sgd_steps={local_sgd_steps!r} is not a number of steps; it is 1 or more.")
        self.enabled = enabled and bool(accelerator.use_distributed)
        self.num_steps = 0
        self.accelerator = accelerator
        self.model = model
        self.local_sgd_steps = local_sgd_steps
        self._no_sync: AbstractContextManager[Any] | None = None

    def __enter__(self) -> LocalSGD:
        if self.enabled:
            self._no_sync = self.accelerator.no_sync(self.model)
            self._no_sync.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._no_sync is None:
            return
        if error is None:
            self._average()
        self._no_sync.__exit__(kind, error, trace)
        self._no_sync = None

    def step(self) -> None:
        """Counts one micro-batch; averages parameters after every ``local_sgd_steps`` optimizer steps. Collective."""
        if not self.enabled or not self.accelerator.sync_gradients:
            return
        self.num_steps += 1
        if self.num_steps % self.local_sgd_steps == 0:
            self._average()

    def _average(self) -> None:
        collectives = runtime.current().collectives
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(collectives.all_reduce(parameter.detach(), "mean"))
