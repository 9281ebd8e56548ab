"""Parameters that are left out of sharding and trained all the same: their gradients are averaged over the ranks."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from accelerate.checkpoint.naming import canonical_parameters
from accelerate.logging import get_logger
from accelerate.strategies.sharded.source import Findings, Source, share_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["GradientAverage", "keep_alike"]

log = get_logger(__name__)


def keep_alike(
    model: torch.nn.Module,
    mesh: DeviceMesh,
    findings: Findings,
    left_out: set[torch.nn.Parameter],
    *,
    one_loads: bool,
) -> list[torch.nn.Parameter]:
    """Collective. Puts the parameters that stay whole on the device, the same on all ranks, and returns those whose
    gradients must be averaged so that they stay the same.

    Where ranks hold different ones on purpose (experts), they are each rank's own affair; that is said once.
    """
    own: list[str] = []
    averaged: list[torch.nn.Parameter] = []
    for name, parameter in canonical_parameters(model):
        if parameter not in left_out:
            continue
        if parameter.device.type != mesh.device_type:
            parameter.data = parameter.data.to(mesh.device_type)
        if name in findings.differing and not one_loads:
            own.append(name)
            continue
        if findings.source is Source.FIRST_RANK:
            share_parameters([parameter], mesh)
        if parameter.requires_grad:
            averaged.append(parameter)
    if own:
        log.warning_once(
            f"{len(own)} parameters that are left out of sharding differ from rank to rank ({own[0]!r} …), so each "
            "rank keeps and trains its own. Load the same values on every rank to have their gradients averaged."
        )
    return averaged


class GradientAverage:
    """Averages each parameter's accumulated gradient over a mesh as soon as backward has completed it.

    Backward is a collective then. The parameters must get a gradient on all ranks or on none.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], mesh: DeviceMesh) -> None:
        self.groups = [mesh.get_group(axis) for axis in range(mesh.ndim)]
        self.size = mesh.size()
        self.enabled = True
        self.handles = [p.register_post_accumulate_grad_hook(self._average) for p in parameters]  # type: ignore[no-untyped-call]

    def _average(self, parameter: torch.Tensor) -> None:
        if not self.enabled or parameter.grad is None:
            return
        for group in self.groups:
            dist.all_reduce(parameter.grad, group=group)
        parameter.grad.div_(self.size)

    def paused(self) -> AbstractContextManager[Any]:
        """A context in which gradients are added up on each rank alone."""
        return self._paused()

    @contextmanager
    def _paused(self) -> Iterator[None]:
        before, self.enabled = self.enabled, False
        try:
            yield
        finally:
            self.enabled = before
