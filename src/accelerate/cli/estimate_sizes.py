"""The arithmetic of memory: what a model takes on one device, by number format and by strategy. Pure, without torch.

Parameters, gradients and the two moments of Adam take one element each (ZeRO, arXiv 1910.02054, section 3), all in the
format of the weights, as torch keeps them. Under ``mixed_precision`` the weights stay in float32: read that row.
DistributedDataParallel holds the gradients a second time, in its buckets (torch's documentation of
``gradient_as_bucket_view``); ZeRO-1 and 2 in two buckets of at most 5e8 elements (DeepSpeed's ``reduce_bucket_size``).

Activations of a transformer, in bytes a layer, with 16-bit numbers: ``s·b·h·(34 + 5·a·s/h)`` (Korthikanti and others,
arXiv 2205.05198, equation 1), without ``5·a·s/h`` where attention keeps no matrix of scores (section 4 leaves it out,
and so does a fused attention), and ``2·s·b·h`` where each layer is computed again in the backward pass. Float32 takes
twice that. Tensor parallelism divides all of ``24 + 5·a·s/h`` and leaves 10 (equation 2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["BYTES", "STRATEGIES", "Cost", "Shape", "Workload", "activations", "inference", "readable", "training"]

BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0, "int4": 0.5}

STRATEGIES: dict[str, tuple[bool, bool, bool]] = {
    "DDP": (False, False, False),
    "ZeRO-1": (False, False, True),
    "ZeRO-2": (False, True, True),
    "ZeRO-3": (True, True, True),
    "FSDP": (True, True, True),
    "TP": (True, True, True),
}
"""Strategy → whether parameters, gradients and optimizer states are divided by the number of devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What of a model its memory depends on. Counts are of elements, tied ones once.

    ``largest`` is the largest part that stays whole, by ``largest_name``; ``blocks`` are the classes that the model
    says must stay whole. ``hidden``, ``layers`` and ``heads`` are zero where the model is no transformer that says so.
    """

    parameters: int
    trainable: int
    buffers: int = 0
    largest: int = 0
    largest_name: str = ""
    tied: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    hidden: int = 0
    layers: int = 0
    heads: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """How a model is trained: items a device, tokens an item, and what is traded for memory."""

    devices: int = 1
    batch: int = 1
    seq: int = 512
    recompute: bool = False
    fused_attention: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Bytes on one device. ``gathered`` is what a sharded model holds whole for the layer at work; ``bucket`` the
    buffers that gradients are reduced in. ``activations`` is None where the formula does not apply."""

    strategy: str
    devices: int
    parameters: int
    gradients: int
    optimizer: int
    gathered: int = 0
    bucket: int = 0
    activations: int | None = None

    @property
    def states(self) -> int:
        """Parameters, gradients and optimizer states."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        """All of it."""
        return self.states + self.gathered + self.bucket + (self.activations or 0)

    def as_dict(self) -> dict[str, int | str | None]:
        """The parts and the sum as plain values."""
        names = ("strategy", "devices", "parameters", "gradients", "optimizer", "gathered", "bucket", "activations")
        return {**{name: getattr(self, name) for name in names}, "total": self.total}


def activations(shape: Shape, work: Workload, dtype: str, tensor_parallel: int = 1) -> int | None:
    """Bytes that the forward pass keeps for the backward pass on one device; None without a transformer's sizes."""
    if not (shape.hidden and shape.layers):
        return None
    wide = BYTES[dtype] / 2 if BYTES[dtype] >= 2 else 1.0
    s, b, h, a = work.seq, work.batch, shape.hidden, shape.heads
    scores = 0.0 if work.fused_attention else 5 * a * s / h
    layer = s * b * h * (10 + (24 + scores) / tensor_parallel) * wide
    if work.recompute:  # the inputs of all layers, and one layer while it is computed again
        return int(shape.layers * 2 * s * b * h * wide + layer)
    return int(shape.layers * layer)


def inference(shape: Shape, dtype: str) -> int:
    """Bytes of the weights and buffers in a number format."""
    return int((shape.parameters + shape.buffers) * BYTES[dtype])


def training(shape: Shape, work: Workload, dtype: str, strategies: Iterable[str] = STRATEGIES) -> list[Cost]:
    """What training with Adam takes on one of ``work.devices`` devices, a row a strategy. ``dtype`` is the format of
    the weights."""
    size = BYTES[dtype]
    rows = []
    for strategy in strategies:
        parts = [work.devices if divided else 1 for divided in STRATEGIES[strategy]]
        many = work.devices > 1
        tensor = work.devices if strategy == "TP" else 1
        rows.append(
            Cost(
                strategy=strategy,
                devices=work.devices,
                parameters=_shard(shape.parameters * size, parts[0]) + int(shape.buffers * size),
                gradients=_shard(shape.trainable * size, parts[1]),
                optimizer=_shard(2 * shape.trainable * size, parts[2]),
                gathered=int(2 * shape.largest * size) if many and strategy in ("FSDP", "ZeRO-3") else 0,
                bucket=_bucket(strategy, shape.trainable, size) if many else 0,
                activations=activations(shape, work, dtype, tensor),
            )
        )
    return rows


def _bucket(strategy: str, elements: int, size: float) -> int:
    if strategy == "DDP":
        return int(elements * size)
    return int(min(elements, 2 * 500_000_000) * size) if strategy in ("ZeRO-1", "ZeRO-2") else 0


def _shard(size: float, parts: int) -> int:
    return -int(-size // parts)


def readable(size: float | None) -> str:
    """Bytes as people write them: ``1.50 GiB``."""
    if size is None:
        return "?"
    for unit, power in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= power:
            return f"{size / power:.2f} {unit}"
    return f"{size:.0f} B"
