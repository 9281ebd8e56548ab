"""Collective calls over a torch process group."""

from __future__ import annotations

import pickle
from typing import Any

import torch
import torch.distributed as dist

from accelerate.comm.reduction import narrow, widen

__all__ = ["ProcessGroupCollectives", "supported_types"]

_OPS: dict[str, Any] = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}


def supported_types(group: Any) -> frozenset[str]:
    """The kinds of device whose tensors ``group`` can send as they are."""
    try:
        return frozenset(device.type for device in group._device_types)
    except (AttributeError, RuntimeError):  # a group written in Python does not say
        return frozenset({"cpu"})


class ProcessGroupCollectives:
    """The collectives of one torch process group (the default group where none is given).

    Tensors travel as bytes wherever nothing is computed, so every dtype works with every backend. A tensor on a device
    that the group cannot send from makes the journey over ``device``; results are on the device of the argument.
    """

    def __init__(
        self, group: Any | None = None, device: torch.device | None = None, types: frozenset[str] | None = None
    ) -> None:
        found: Any = group if group is not None else dist.group.WORLD
        self.group = found
        # Named so since torch 2.13; a bare backend still has the older name only.
        self._gather: Any = getattr(found, "all_gather_single", None) or found._allgather_base
        self.rank: int = found.rank()
        self.size: int = found.size()
        self.device = device if device is not None else torch.device("cpu")
        self._types = types if types is not None else supported_types(self.group)

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Collective. See :class:`accelerate.comm.base.Collectives`."""
        data = self._reachable(tensor)
        if data.dtype is not torch.uint8:
            data = data.reshape(-1).view(torch.uint8)
        rows = data.new_empty(self.size * data.numel())
        if data.numel():
            self._wait(self._gather(rows, data.reshape(-1)))
        return self._returned(rows.view(tensor.dtype).view(self.size, *tensor.shape), tensor)

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """Collective. See :class:`accelerate.comm.base.Collectives`."""
        data = widen(self._reachable(tensor), op)
        if data.data_ptr() == tensor.data_ptr():
            data = data.clone()
        if data.numel():
            options = dist.AllreduceOptions()
            options.reduceOp = _OPS["sum" if op == "mean" else op]
            self._wait(self.group.allreduce([data], options))
        return self._returned(narrow(data, tensor.dtype, op, self.size), tensor)

    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
        """Collective. See :class:`accelerate.comm.base.Collectives`."""
        data = self._reachable(tensor).reshape(-1).view(torch.uint8)
        if data.data_ptr() == tensor.data_ptr():
            data = data.clone()
        if data.numel():
            options = dist.BroadcastOptions()
            options.rootRank = src
            options.rootTensor = 0
            self._wait(self.group.broadcast([data], options))
        return self._returned(data.view(tensor.dtype).view(tensor.shape), tensor)

    def all_gather_object(self, obj: Any) -> list[Any]:
        """Collective. See :class:`accelerate.comm.base.Collectives`."""
        data = _packed(obj)
        lengths = self.all_gather(torch.tensor([data.numel()])).view(-1).tolist()
        padded = data.new_zeros(max(lengths))
        padded[: data.numel()] = data
        rows = self.all_gather(padded)
        return [_unpacked(row[:length]) for row, length in zip(rows, lengths, strict=True)]

    def broadcast_objects(self, objs: list[Any], src: int = 0) -> list[Any]:
        """Collective. See :class:`accelerate.comm.base.Collectives`."""
        data = _packed(objs) if self.rank == src else torch.empty(0, dtype=torch.uint8)
        length = int(self.broadcast(torch.tensor([data.numel()]), src))
        data = data if self.rank == src else data.new_empty(length)
        found: list[Any] = _unpacked(self.broadcast(data, src))
        return list(objs) if self.rank == src else found

    def barrier(self) -> None:
        """Collective. Returns when every rank has called it."""
        self.all_gather(torch.zeros(1, dtype=torch.uint8))

    def _reachable(self, tensor: torch.Tensor) -> torch.Tensor:
        data = tensor.detach()
        if data.device.type not in self._types:
            data = data.to(self.device)
        return data.contiguous()

    def _returned(self, data: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return data if data.device == like.device else data.to(like.device)

    def _wait(self, work: Any) -> None:
        work.wait()


def _packed(obj: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)


def _unpacked(data: torch.Tensor) -> Any:
    return pickle.loads(data.numpy().tobytes())
