"""Which way of training fits: one pure function of a model's shape, the devices and the work. Without torch.

``accelerate plan`` shows what it finds. Ways are tried from the fastest, which talks least and computes nothing twice,
to the smallest; of a way, the largest micro-batch that fits is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from accelerate.cli.estimate_sizes import BYTES, Cost, Shape, Workload, readable, training
from accelerate.errors import ConfigError

__all__ = ["RESERVE", "WAYS", "Choice", "Machine", "arithmetic", "best", "choose", "considered", "read_bytes"]

RESERVE = 0.1  # of a device's memory, for the framework, the allocator's gaps and the output of the last layer

WAYS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("DDP", ()),
    ("FSDP2, no reshard", ("--fsdp_reshard_after_forward", "false")),
    ("FSDP2", ("--fsdp_reshard_after_forward", "true")),
)
_FSDP2 = ("--use_fsdp", "--fsdp_version", "2", "--fsdp_auto_wrap_policy")
_AGAIN = ("--fsdp_activation_checkpointing", "true")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What there is to train on: devices of one ``kind`` with ``memory`` bytes for each process."""

    devices: int
    memory: int
    kind: str = "cpu"

    @property
    def usable(self) -> int:
        """Bytes of a device without the reserve."""
        return int(self.memory * (1 - RESERVE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A way of training and what it costs on one device. ``micro_batch`` items go through at once, ``accumulation``
    times a step. ``fits`` says whether that is within the usable memory."""

    way: str
    flags: tuple[str, ...]
    recompute: bool
    micro_batch: int
    accumulation: int
    cost: Cost
    fits: bool


def read_bytes(text: str) -> int:
    """The bytes that ``24GiB``, ``80GB`` or ``512M`` stand for (``M``, ``G``, ``T`` alone: powers of 1024).

    Raises:
        ConfigError: it is no size.
    """
    found = _SIZE.fullmatch(text.strip())
    if not found or not float(found[1]):
        raise ConfigError(f"{text!r} is not a size of memory. Write for example 24GiB.")
    decimal = not found[3] and text.strip().upper().endswith("B")
    return int(float(found[1]) * (1000 if decimal else 1024) ** " KMGT".index(found[2].upper() or " "))


def considered(shape: Shape, machine: Machine, work: Workload, dtype: str = "float32") -> Iterator[Choice]:
    """Every way, from the fastest to the smallest, each with the largest micro-batch that fits, or else with one item.

    ``work.batch`` is how many items each device takes in a step. On one device nothing can be sharded.
    """
    # A model that names its blocks is sharded by them; any other in pieces of the size that the sum counts with.
    pieces = ("SIZE_BASED_WRAP", "--fsdp_min_num_params", str(shape.largest))
    wrap = ("TRANSFORMER_BASED_WRAP",) if shape.blocks else pieces
    for recompute in (False, True):
        # Without sizes of a transformer nothing is known of what computing again would save.
        if recompute and not (shape.hidden and shape.layers):
            return
        for way, flags in WAYS if machine.devices > 1 else WAYS[:1]:
            # A flag turns checkpointing on under FSDP only; elsewhere it is a call of the model.
            words = (*_FSDP2, *wrap, *flags, *(_AGAIN if recompute else ())) if flags else ()
            yield _largest(
                shape, machine, replace(work, devices=machine.devices, recompute=recompute), dtype, way, words
            )


def _largest(shape: Shape, machine: Machine, work: Workload, dtype: str, way: str, flags: tuple[str, ...]) -> Choice:
    parts = [size for size in range(work.batch, 0, -1) if work.batch % size == 0]
    for size in parts:
        cost = _cost(shape, replace(work, batch=size), dtype, way)
        if size < work.batch:  # between the parts of a step nothing is reduced, so that gradients stay whole
            cost = replace(cost, gradients=int(shape.trainable * BYTES[dtype]))
        fits = cost.total <= machine.usable
        if fits or size == 1:
            break
    return Choice(
        way="one process" if machine.devices == 1 else way,
        flags=flags,
        recompute=work.recompute,
        micro_batch=size,
        accumulation=work.batch // size,
        cost=cost,
        fits=fits,
    )


def _cost(shape: Shape, work: Workload, dtype: str, way: str) -> Cost:
    strategy = "FSDP" if way.startswith("FSDP") else "DDP"
    (cost,) = training(shape, work, dtype, [strategy])
    if way == WAYS[1][0]:  # every layer stays gathered from its forward to its backward pass
        whole = training(shape, replace(work, devices=1), dtype, ["DDP"])[0].parameters
        return replace(cost, gathered=cost.gathered // 2 + whole)
    return cost


def choose(shape: Shape, machine: Machine, work: Workload, dtype: str = "float32") -> Choice:
    """The first way that fits; where none does, the smallest, with ``fits`` False."""
    return best(list(considered(shape, machine, work, dtype)))


def best(every: Sequence[Choice]) -> Choice:
    """The first of these that fits; where none does, the smallest."""
    return next((choice for choice in every if choice.fits), min(every, key=lambda choice: choice.cost.total))


def arithmetic(shape: Shape, choice: Choice, machine: Machine, dtype: str) -> list[str]:
    """The sum of a choice, a line a summand."""
    cost, n = choice.cost, machine.devices
    share = f" / {n}" if "FSDP" in choice.way else ""
    reduced = share if choice.accumulation == 1 else ""
    lines = [
        f"weights      {shape.parameters:,} x {dtype}{share} = {readable(cost.parameters)}",
        f"gradients    {shape.trainable:,} x {dtype}{reduced} = {readable(cost.gradients)}",
        f"Adam         2 x {shape.trainable:,} x {dtype}{share} = {readable(cost.optimizer)}",
    ]
    if cost.gathered:
        lines.append(
            f"gathered     layers held whole ({shape.largest_name} is the largest) = {readable(cost.gathered)}"
        )
    if cost.bucket:
        lines.append(f"buckets      gradients on their way = {readable(cost.bucket)}")
    again = ", computed again" if choice.recompute else ""
    known = readable(cost.activations) if cost.activations is not None else "unknown: no transformer's configuration"
    lines.append(f"activations  {choice.micro_batch} item{'s' * (choice.micro_batch > 1)}{again} = {known}")
    verdict = "<=" if choice.fits else ">"
    lines.append(
        f"sum          {readable(cost.total)} {verdict} {readable(machine.usable)} "
        f"({readable(machine.memory)} less {RESERVE:.0%})"
    )
    return lines
