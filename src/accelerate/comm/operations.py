"""Collective operations on nested data, over the group of this process.

Every rank must make the same calls in the same order. What the ranks hand in is compared before anything is exchanged:
a difference is an error on all of them, with each rank's data and line of code in the message. In a single process
everything comes back as it was given.
"""

from __future__ import annotations

import pickle
import struct
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from accelerate.comm.frames import Frames, Op
from accelerate.comm.here import frames
from accelerate.comm.plain import padded, taken
from accelerate.comm.reduction import OPERATIONS, reduce_rows
from accelerate.comm.spec import flatten, restore, words
from accelerate.comm.uneven import gather_uneven

__all__ = [
    "CannotPadNestedTensorWarning",
    "GatheredParameters",
    "any_rank",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "copy_tensor_to_devices",
    "gather",
    "gather_object",
    "gather_uneven",
    "pad_across_processes",
    "reduce",
]


class CannotPadNestedTensorWarning(UserWarning):
    """A nested tensor was left as it is, because it has no single size to pad to."""


@contextmanager
def GatheredParameters(  # noqa: N802 - a public name
    params: Any, modifier_rank: int | None = None, fwd_module: Any | None = None, enabled: bool = True
) -> Iterator[None]:
    """Collective under DeepSpeed's ZeRO stage 3, where ``params`` are whole inside the block; elsewhere they always
    are. Changes made on rank ``modifier_rank`` go to all ranks at the end."""
    engine = sys.modules.get("deepspeed")  # sharded parameters exist only after it was imported
    if engine is None:
        yield
        return
    with engine.zero.GatheredParameters(params, modifier_rank=modifier_rank, fwd_module=fwd_module, enabled=enabled):
        yield


def barrier() -> None:
    """Collective. Returns when every rank has called it."""
    wire = frames()
    if wire is not None:
        wire.check(Op.WAIT_FOR_EVERYONE, 0, str)


def any_rank(flag: bool) -> bool:
    """Collective. Whether ``flag`` is true on any rank."""
    wire = frames()
    if wire is None:
        return flag
    return b"1" in wire.swap_bytes(Op.AGREE, 0, b"1" if flag else b"0", lambda: str(flag))


def gather(tensor: Any) -> Any:
    """Collective. ``tensor`` (any structure) with each tensor joined over the ranks along its first dimension, in rank
    order; tensors without a dimension become one-dimensional.

    Raises:
        CollectiveError: structures, shapes or dtypes differ between the ranks.
        TypeError: a leaf is neither a tensor nor None.
    """
    wire = frames()
    if wire is None:
        return tensor
    spec, tensors = taken(wire, Op.GATHER, tensor)
    key = (spec, tuple([(item.shape, item.dtype) for item in tensors]))
    rows, starts = wire.swap_tensors(Op.GATHER, key, tensors, lambda: words(tensor))
    size = wire.size
    joined = []
    for item, row, start in zip(tensors, rows, starts, strict=True):
        flat = row.take(start, item.nbytes, item.dtype)
        joined.append(flat.view(size * item.shape[0], *item.shape[1:]) if item.ndim else flat)
    return joined[0] if spec == 0 else restore(tensor, iter(joined))


def reduce(tensor: Any, reduction: str = "mean", scale: float = 1.0) -> Any:
    """Collective. ``tensor`` (any structure) with each tensor reduced over the ranks, times ``scale``: the same bits on
    every rank. ``reduction`` is "mean", "sum", "min", "max", or "none" for only scaling. The mean of whole numbers and
    truth values is a float32, the sum of truth values a count.

    Raises:
        CollectiveError: structures, shapes or dtypes differ between the ranks.
        ValueError: the reduction is unknown.
    """
    wire = frames() if reduction != "none" else None
    if wire is None:
        if reduction != "none" and reduction not in OPERATIONS:
            raise _unknown_reduction(reduction)
        return tensor if scale == 1.0 else restore(tensor, iter([item * scale for item in _tensors(tensor)]))
    if reduction not in OPERATIONS:
        wire.refuse(Op.REDUCE, _unknown_reduction(reduction))
    spec, tensors = taken(wire, Op.REDUCE, tensor)
    key = (reduction, spec, tuple([(item.shape, item.dtype) for item in tensors]))
    if wire.fits(tensors):
        rows, starts = wire.swap_tensors(Op.REDUCE, key, tensors, lambda: words(tensor))
        reduced = [
            reduce_rows(row.take(start, item.nbytes, item.dtype).view(wire.size, *item.shape), reduction)
            for item, row, start in zip(tensors, rows, starts, strict=True)
        ]
    else:
        wire.check(Op.REDUCE, key, lambda: words(tensor))
        reduced = [wire.main.all_reduce(item, reduction) for item in tensors]
    if scale != 1.0:
        reduced = [item * scale for item in reduced]
    return reduced[0] if spec == 0 else restore(tensor, iter(reduced))


def broadcast(tensor: Any, from_process: int = 0) -> Any:
    """Collective. ``tensor`` (any structure), whose tensors now hold, in place, what rank ``from_process`` had in them.

    Raises:
        CollectiveError: structures, shapes or dtypes differ between the ranks.
    """
    wire = frames()
    if wire is None:
        return tensor
    _check_source(wire, Op.BROADCAST, from_process)
    spec, tensors = taken(wire, Op.BROADCAST, tensor)
    key = (from_process, spec, tuple([(item.shape, item.dtype) for item in tensors]))
    if wire.fits(tensors):
        rows, starts = wire.swap_tensors(Op.BROADCAST, key, tensors, lambda: words(tensor))
        sent = [
            row.data[from_process, start : start + item.nbytes].clone().view(item.dtype).view(item.shape)
            for item, row, start in zip(tensors, rows, starts, strict=True)
        ]
    else:
        wire.check(Op.BROADCAST, key, lambda: words(tensor))
        sent = [wire.main.broadcast(item, from_process) for item in tensors]
    if wire.rank != from_process:
        with torch.no_grad():
            for item, value in zip(_tensors(tensor), sent, strict=True):
                item.copy_(value)
    return tensor


def gather_object(object: Any) -> Any:
    """Collective. Every rank's picklable object: where they are lists or tuples, one list of all their items; otherwise
    the list of the objects, rank by rank."""
    wire = frames()
    if wire is None:
        return object
    found = _swap_objects(wire, Op.GATHER_OBJECT, 0, object, lambda: f"a {type(object).__name__}")
    if all(isinstance(item, (list, tuple)) for item in found):
        return [inner for item in found for inner in item]
    return found


def broadcast_object_list(object_list: list[Any], from_process: int = 0) -> list[Any]:
    """Collective. ``object_list`` itself, filled with the picklable objects of rank ``from_process``.

    Raises:
        CollectiveError: the lists differ in length.
    """
    wire = frames()
    if wire is None:
        return object_list
    _check_source(wire, Op.BROADCAST_OBJECT_LIST, from_process)
    key = (from_process, len(object_list))
    found = _swap_objects(
        wire,
        Op.BROADCAST_OBJECT_LIST,
        key,
        object_list,
        lambda: f"a list of {len(object_list)}, from_process={from_process}",
        root=from_process,
    )
    if wire.rank != from_process:
        object_list[:] = found[from_process]
    return object_list


def pad_across_processes(tensor: Any, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> Any:
    """Collective. ``tensor`` (any structure) with each tensor padded along ``dim``, with ``pad_index``, to its largest
    size over the ranks: at the end, or at the start with ``pad_first``. Tensors without such a dimension stay.

    Raises:
        CollectiveError: structures or numbers of dimensions differ between the ranks.
    """
    wire = frames()
    if wire is None:
        return tensor
    tensors: list[torch.Tensor] = []
    try:
        spec = flatten(tensor, tensors)
    except TypeError as error:
        wire.refuse(Op.PAD_ACROSS_PROCESSES, error)
    here = [-1 if item.is_nested or not -item.ndim <= dim < item.ndim else item.shape[dim] for item in tensors]
    key = (dim, spec, tuple([item.ndim for item in tensors]))
    sizes = struct.pack(f"<{len(here)}q", *here)
    told = wire.swap_bytes(Op.PAD_ACROSS_PROCESSES, key, sizes, lambda: f"{words(tensor)}, dim={dim}")
    largest = [max(column) for column in zip(*[struct.unpack(f"<{len(here)}q", text) for text in told], strict=True)]
    for item in tensors:
        if item.is_nested:
            warnings.warn("A nested tensor cannot be padded; it stays as it is.", CannotPadNestedTensorWarning, 2)
    return restore(
        tensor,
        iter(
            [
                item if size in (now, -1) else padded(item, dim, size, pad_index, pad_first)
                for item, now, size in zip(tensors, here, largest, strict=True)
            ]
        ),
    )


def copy_tensor_to_devices(tensor: torch.Tensor | None = None) -> torch.Tensor:
    """Collective. The tensor that exactly one rank has, on every rank's device; the others pass None.

    Raises:
        ValueError: no rank or several have one.
    """
    wire = frames()
    if wire is None:
        if tensor is None:
            raise ValueError("copy_tensor_to_devices() got None from the only process there is. Pass the tensor.")
        return tensor
    mine = None if tensor is None else (tensor.shape, tensor.dtype)
    told = _swap_objects(wire, Op.COPY_TENSOR_TO_DEVICES, 0, mine, lambda: words(tensor))
    owners = [rank for rank, shape in enumerate(told) if shape is not None]
    if len(owners) != 1:
        raise ValueError(
            f"copy_tensor_to_devices() copies from the one rank that has a tensor, but rank(s) {owners or 'none'} have "
            "one. Pass None on all others."
        )
    from accelerate import runtime

    shape, dtype = told[owners[0]]
    held = runtime.find()
    device = held.device if held is not None else torch.device("cpu")
    source = torch.empty(shape, dtype=dtype, device=device) if tensor is None else tensor
    return wire.main.broadcast(source, owners[0])


def _tensors(data: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    flatten(data, found)
    return found


def _swap_objects(
    wire: Frames, op: Op, key: Any, mine: Any, describe: Callable[[], str], root: int | None = None
) -> list[Any]:
    try:
        data = pickle.dumps(mine) if root is None or root == wire.rank else b""
    except Exception as error:  # whatever an object's own pickling raises
        wire.refuse(op, error)
    told = wire.swap_bytes(op, key, data, describe, root)
    return [pickle.loads(text) if text else None for text in told]


def _check_source(wire: Frames, op: Op, rank: int) -> None:
    if not 0 <= rank < wire.size:
        wire.refuse(
            op, ValueError(f"from_process={rank} is not a rank of this job: ranks go from 0 to {wire.size - 1}.")
        )


def _unknown_reduction(reduction: str) -> ValueError:
    return ValueError(f"reduction={reduction!r} is not one of {', '.join(OPERATIONS)} or none.")
