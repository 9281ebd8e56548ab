"""How the rank that reads sends every rank its part: one message a step, which only its receiver gets.

A message is a header of four numbers and a pickle in which plain tensors are replaced by their places in the bytes that
follow, so whatever is in a batch arrives as it is. Messages of a step have one length for all ranks, the capacity; it
follows the size of what was sent last, which every header tells, so that a step is one exchange.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import torch
import torch.distributed as dist

from accelerate.comm.base import Collectives

__all__ = ["Channel", "Message", "Packed", "pack", "unpack"]

READER = 0
_HEADER = 64  # four numbers, and then tensors begin at a multiple of 64
_ALIGN = 64
_LEAST = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a rank gets in a step: a ``status``, a number beside it, and data."""

    status: int
    number: int = 0
    data: Any = None


@dataclass(slots=True)
class Packed:
    """Data as bytes: a pickle, then tensors, each at a multiple of 64."""

    pickled: bytes
    tensors: list[torch.Tensor]
    size: int

    def write(self, buffer: torch.Tensor) -> None:
        """Puts the bytes at the beginning of ``buffer``."""
        length = len(self.pickled)
        buffer[:8] = torch.tensor([length]).view(torch.uint8)
        buffer[8 : 8 + length] = torch.frombuffer(bytearray(self.pickled), dtype=torch.uint8)
        place = _aligned(8 + length)
        for tensor in self.tensors:
            count = tensor.nbytes
            if count:
                buffer[place : place + count] = tensor.view(-1).view(torch.uint8)
            place += _aligned(count)


class _Pickler(pickle.Pickler):
    def __init__(self, file: BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[torch.Tensor] = []

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is not torch.Tensor or obj.layout is not torch.strided or obj.is_quantized or obj.is_nested:
            return None
        if obj.is_meta:
            return None
        self.tensors.append(obj.detach().cpu().resolve_conj().resolve_neg().contiguous())
        return len(self.tensors) - 1, obj.dtype, tuple(obj.shape)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BytesIO, buffer: torch.Tensor, place: int) -> None:
        super().__init__(file)
        self._buffer = buffer
        self._place = place

    def persistent_load(self, pid: Any) -> torch.Tensor:
        _, dtype, shape = pid
        count = dtype.itemsize
        for length in shape:
            count *= length
        place = self._place
        self._place += _aligned(count)
        if not count:
            return torch.empty(shape, dtype=dtype)
        return self._buffer[place : place + count].view(dtype).view(shape)


def _aligned(count: int) -> int:
    return -(-count // _ALIGN) * _ALIGN


def pack(data: Any) -> Packed:
    """``data`` as bytes."""
    file = BytesIO()
    pickler = _Pickler(file)
    pickler.dump(data)
    pickled = file.getvalue()
    size = _aligned(8 + len(pickled)) + sum(_aligned(tensor.nbytes) for tensor in pickler.tensors)
    return Packed(pickled, pickler.tensors, size)


def unpack(buffer: torch.Tensor) -> Any:
    """The reverse of :func:`pack`. Tensors are views of ``buffer``."""
    length = int(buffer[:8].view(torch.int64))
    pickled = BytesIO(buffer[8 : 8 + length].numpy().tobytes())
    return _Unpickler(pickled, buffer, _aligned(8 + length)).load()


class Channel:
    """Messages from rank 0 of a group to each of its ranks. ``parts`` says which part of the data each rank gets.

    Waiting is watched where the group has a watch: a rank that has left the loop makes the others raise.
    """

    def __init__(self, collectives: Collectives, name: str, parts: Sequence[int]) -> None:
        control = getattr(collectives, "control", None)
        self._group: Any = control if control is not None else collectives
        self._watch: Any = getattr(self._group, "watch", None)
        self._capacity = _LEAST
        self.rank = collectives.rank
        self.size = collectives.size
        self._name = name
        self.parts = parts
        self._loops = 0
        self._topic: str | None = None

    def begin(self) -> None:
        """A new loop; every rank calls it as often as the others."""
        self._loops += 1
        self._topic = f"loop {self._loops} over {self._name}"

    @property
    def reads(self) -> bool:
        """Whether this rank is the one that sends."""
        return self.rank == READER

    def leave(self, exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        """Tells the others that this rank takes no further part in the loop."""
        if self._watch is None or self._topic is None or exiting():
            return
        try:
            self._watch.leave(self._topic)
        except RuntimeError:  # the job's store went away first: nobody is left to be told
            return

    def send(self, messages: Sequence[Message]) -> Message:
        """Collective, with ``receive`` on the others. Sends one message to each rank, and returns this rank's own."""
        others = {id(message): message for rank, message in enumerate(messages) if rank != READER}
        packed = {key: _packed(message) for key, message in others.items()}
        most = max((value.size for value in packed.values() if value is not None), default=0)
        frames = {key: self._frame(message, packed[key], most) for key, message in others.items()}
        self._exchange([frames.get(id(message)) for message in messages], self._capacity)
        if most > self._capacity - _HEADER:
            apart = {key: _written(value, most) for key, value in packed.items()}
            self._exchange([apart.get(id(message)) for message in messages], most)
        self._adapt(most)
        return messages[READER]

    def receive(self) -> Message:
        """Collective, with ``send`` on rank 0. What this rank was sent."""
        frame = self._exchange(None, self._capacity)
        status, number, size, most = frame[:32].view(torch.int64).tolist()
        body = frame[_HEADER:]
        if most > self._capacity - _HEADER:
            body = self._exchange(None, most)
        self._adapt(most)
        return Message(status=status, number=number, data=unpack(body) if size else None)

    def _frame(self, message: Message, packed: Packed | None, most: int) -> torch.Tensor:
        frame = torch.empty(self._capacity, dtype=torch.uint8)
        size = 0 if packed is None else packed.size
        header = torch.tensor([message.status, message.number, size, most])
        frame[:32] = header.view(torch.uint8)
        if packed is not None and size <= most <= self._capacity - _HEADER:
            packed.write(frame[_HEADER:])
        return frame

    def _adapt(self, most: int) -> None:
        room = self._capacity - _HEADER
        if most > room or most * 4 < room:
            self._capacity = max(_LEAST, _HEADER + _aligned(most + most // 4))

    def _exchange(self, given: list[torch.Tensor | None] | None, length: int) -> torch.Tensor:
        """Collective. The ``length`` bytes for this rank, of those that the reader has; the reader needs none."""
        rows = None
        if given is not None:
            rows = [torch.empty(length, dtype=torch.uint8) if row is None else row for row in given]
        group = getattr(self._group, "group", None)
        if group is None:
            sent: list[torch.Tensor] = self._group.broadcast_objects([rows], READER)[0]
            return sent[self.rank]
        row = torch.empty(length, dtype=torch.uint8)
        options = dist.ScatterOptions()
        options.rootRank = READER
        if self._watch is not None:
            self._watch.topic, self._watch.call = self._topic, "the next batch of a loader that rank 0 reads"
        try:
            self._group._wait(group.scatter([row], [] if rows is None else [rows], options))
        finally:
            if self._watch is not None:
                self._watch.topic = self._watch.call = None
        return row


def _packed(message: Message) -> Packed | None:
    return None if message.data is None else pack(message.data)


def _written(packed: Packed | None, size: int) -> torch.Tensor:
    buffer = torch.empty(size, dtype=torch.uint8)
    if packed is not None and packed.size <= size:
        packed.write(buffer)
    return buffer
