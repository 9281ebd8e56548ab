"""Frames: one small message from every rank to every rank that says which call a rank is in, and carries small data.

Every checked operation begins with one exchange of frames of the same fixed size, so ranks that disagree about the
call, the structure, a shape or a dtype find out before any data is read: all of them, at the same moment. Data that
fits is inside the frame, so a small gather or reduce costs one exchange in all.

Layout, little endian: operation, signature, flags, length of the data (int64 each), four spare words, then the data.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import torch

from accelerate.comm.where import user_line
from accelerate.errors import CollectiveError

if TYPE_CHECKING:
    from accelerate.comm.base import Collectives

__all__ = ["CAPACITY", "FRAME", "Frames", "Op", "Rows"]

FRAME = 4096
HEADER = 64
CAPACITY = FRAME - HEADER
ALIGN = 16
REFUSES, INSIDE = 1, 2  # flags: this rank cannot take part; the data is inside the frame

_HEAD = struct.Struct("<4q")
_KEY = 24  # bytes of the header that have to be the same on every rank
_DIGESTS: dict[Any, int] = {}


class Op(IntEnum):
    """The calls that begin with an exchange of frames. In lower case: what they are called where users call them."""

    GATHER = 1
    GATHER_FOR_METRICS = 2
    GATHER_OBJECT = 3
    REDUCE = 4
    BROADCAST = 5
    BROADCAST_OBJECT_LIST = 6
    PAD_ACROSS_PROCESSES = 7
    WAIT_FOR_EVERYONE = 8
    MAIN_PROCESS_FIRST = 9
    COPY_TENSOR_TO_DEVICES = 10
    AGREE = 11


_NAMES = {op: f"{op.name.lower()}()" for op in Op}


def digest(key: Any) -> int:
    """A number for a hashable description, the same on every rank. Remembered: describing is the slow part."""
    found = _DIGESTS.get(key)
    if found is None:
        import xxhash

        if len(_DIGESTS) > 4096:  # shapes that never repeat would fill the memory
            _DIGESTS.clear()
        found = _DIGESTS[key] = xxhash.xxh3_64_intdigest(repr(key).encode()) - (1 << 63)
    return found


def aligned(count: int) -> int:
    """``count`` bytes, rounded up so that any dtype may start there."""
    return -(-count // ALIGN) * ALIGN


def _memory(data: torch.Tensor) -> memoryview:
    buffer: Any = data.numpy()
    return memoryview(buffer)


class Rows:
    """What the ranks sent: a matrix of bytes, a row a rank."""

    __slots__ = ("data",)

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data

    def take(self, start: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Bytes ``start`` to ``start + count`` of every row as one flat tensor of ``dtype``, rank by rank."""
        return self.data[:, start : start + count].reshape(-1).view(dtype)


class Frames:
    """Exchanges frames over one group.

    ``control`` carries frames; ``main`` carries what does not fit into them. They may be the same.
    """

    def __init__(self, main: Collectives, control: Collectives | None = None) -> None:
        self.main = main
        self.control = control if control is not None else main
        self.rank = main.rank
        self.size = main.size
        self._watch: Any = getattr(self.control, "watch", None)
        self._frame = torch.zeros(FRAME, dtype=torch.uint8)
        self._bytes = _memory(self._frame)

    def fits(self, tensors: list[torch.Tensor]) -> bool:
        """Whether ``tensors`` travel inside a frame."""
        total = 0
        for tensor in tensors:
            total += aligned(tensor.nbytes)
            if total > CAPACITY or not tensor.is_cpu:
                return False
        return True

    def swap_tensors(
        self, op: Op, key: Any, tensors: list[torch.Tensor], describe: Callable[[], str]
    ) -> tuple[list[Rows], list[int]]:
        """Collective. Every rank's ``tensors`` (contiguous, like on every rank), as bytes.

        Returns for every tensor the rows it is in and where in a row it starts. ``key`` describes the call and has to
        be equal on every rank; ``describe`` puts it into words for the error.
        """
        if not self.fits(tensors):
            self._exchange(op, digest(key), 0, describe)
            return self.send_apart(tensors)
        starts = self._put(tensors, HEADER)
        return [Rows(self._exchange(op, digest(key), 0, describe, INSIDE))] * len(tensors), starts

    def body(self, count: int) -> int:
        """Where in a frame the data of :meth:`swap_uneven` begins, for ``count`` tensors."""
        return HEADER + aligned(8 * count)

    def swap_uneven(
        self, op: Op, key: Any, lengths: list[int], tensors: list[torch.Tensor], describe: Callable[[], str]
    ) -> tuple[list[list[int]], torch.Tensor | None]:
        """Collective. Every rank's ``lengths``, and the frames of all ranks where they hold all ranks' tensors.

        In a frame the tensors follow each other from :meth:`body` on, each at the next place that suits any dtype.
        """
        head, start = struct.pack(f"<{len(lengths)}q", *lengths), self.body(len(lengths))
        if start > FRAME:
            told = self.swap_bytes(op, key, head, describe)
            return [list(struct.unpack(f"<{len(lengths)}q", text)) for text in told], None
        self._bytes[HEADER : HEADER + len(head)] = head
        total = start + sum(aligned(tensor.nbytes) for tensor in tensors)
        if total <= FRAME and all(tensor.is_cpu for tensor in tensors):
            self._put(tensors, start)
        else:
            total = FRAME + 1
        frames = self._exchange(op, digest(key), total, describe)
        rows = frames.numpy()
        counts = [list(struct.unpack_from(f"<{len(lengths)}q", rows[rank], HEADER)) for rank in range(self.size)]
        inside = all(_HEAD.unpack_from(rows[rank])[3] <= FRAME for rank in range(self.size))
        return counts, frames if inside else None

    def _put(self, tensors: list[torch.Tensor], start: int) -> list[int]:
        """Writes ``tensors`` into the frame; returns where each begins."""
        starts = []
        for tensor in tensors:
            starts.append(start)
            count = tensor.nbytes
            if count:
                self._frame[start : start + count] = tensor.reshape(-1).view(torch.uint8)
                start += aligned(count)
        return starts

    def swap_bytes(
        self, op: Op, key: Any, data: bytes, describe: Callable[[], str], root: int | None = None
    ) -> list[bytes]:
        """Collective. Every rank's ``data``, which may differ in length. With ``root`` only that rank's data is sent
        where it is long."""
        if len(data) <= CAPACITY:
            self._bytes[HEADER : HEADER + len(data)] = data
        frames = self._exchange(op, digest(key), len(data), describe).numpy()
        lengths = [_HEAD.unpack_from(frames[rank])[3] for rank in range(self.size)]
        longest = max(lengths)
        if longest <= CAPACITY:
            return [frames[rank, HEADER : HEADER + length].tobytes() for rank, length in enumerate(lengths)]
        padded = torch.zeros(longest, dtype=torch.uint8)
        if data:
            padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if root is not None:
            sent = self.control.broadcast(padded, root).numpy()
            return [sent[:length].tobytes() if rank == root else b"" for rank, length in enumerate(lengths)]
        rows = self.control.all_gather(padded).numpy()
        return [rows[rank, :length].tobytes() for rank, length in enumerate(lengths)]

    def check(self, op: Op, key: Any, describe: Callable[[], str]) -> None:
        """Collective. Returns when every rank is in the same call.

        Raises:
            CollectiveError: they are not.
        """
        self._exchange(op, digest(key), 0, describe)

    def refuse(self, op: Op, error: Exception) -> NoReturn:
        """Collective. Tells the others that this rank cannot take part in ``op``, so that none waits for it.

        Raises:
            Exception: ``error``, here; a CollectiveError that quotes it on the other ranks.
        """
        try:
            self._exchange(op, 0, 0, lambda: f"{type(error).__name__}: {error}", REFUSES)
        except CollectiveError as mismatch:
            raise error from mismatch
        raise error

    def send_apart(self, tensors: list[torch.Tensor]) -> tuple[list[Rows], list[int]]:
        """Collective, after a check. Large tensors travel alone, which spares copying them; small ones together."""
        rows: list[Rows | None] = [None] * len(tensors)
        starts = [0] * len(tensors)
        small: list[int] = []
        for i, tensor in enumerate(tensors):
            if tensor.nbytes > 1 << 16:
                rows[i] = Rows(self.main.all_gather(tensor).view(self.size, -1).view(torch.uint8))
            else:
                small.append(i)
        for device in dict.fromkeys(tensors[i].device for i in small):
            here = [i for i in small if tensors[i].device == device]
            total = 0
            for i in here:
                starts[i] = total
                total += aligned(tensors[i].nbytes)
            packed = torch.zeros(total, dtype=torch.uint8, device=device)
            for i in here:
                if tensors[i].nbytes:
                    packed[starts[i] : starts[i] + tensors[i].nbytes] = tensors[i].reshape(-1).view(torch.uint8)
            together = Rows(self.main.all_gather(packed))
            for i in here:
                rows[i] = together
        return [row for row in rows if row is not None], starts

    def _exchange(
        self, op: Op, signature: int, length: int, describe: Callable[[], str], flags: int = 0
    ) -> torch.Tensor:
        _HEAD.pack_into(self._bytes, 0, op, signature, flags, length)
        watch = self._watch
        if watch is not None:
            watch.call = _NAMES[op]
        try:
            frames = self.control.all_gather(self._frame)
        finally:
            if watch is not None:
                watch.call = None
        raw = _memory(frames.view(-1))
        mine = self._bytes[:_KEY]
        for start in range(0, self.size * FRAME, FRAME):
            if raw[start : start + _KEY] != mine:
                self._explain(op, describe, flags == REFUSES)
        return frames

    def _explain(self, op: Op, describe: Callable[[], str], refuses: bool) -> NoReturn:
        """Collective: every rank has seen the same frames, so every rank comes here. Nobody's data was read."""
        told: list[Said] = self.control.all_gather_object((int(op), describe(), user_line(), refuses))
        raise CollectiveError(explanation(self.rank, told))


Said: TypeAlias = "tuple[int, str, str, bool]"
"""What a rank says when ranks disagree: its call, its data in words, its line, and whether it cannot take part."""


def explanation(rank: int, told: list[Said]) -> str:
    """The message about ranks that disagree."""
    names = {Op(op).name.lower() for op, _, _, _ in told}
    lines, refusing = [], []
    for place, (op, words, line, refuses) in enumerate(told):
        if refuses:
            refusing.append(str(place))
            lines.append(f"  rank {place}: in {Op(op).name.lower()}() at {line}: {words}")
        else:
            lines.append(f"  rank {place}: {Op(op).name.lower()}({words}) at {line}")
    if refusing:
        head = f"Rank {', '.join(refusing)} could not take part in {'(), '.join(sorted(names))}()"
        hint = "Every rank has to hand in the same structure with the same shapes and dtypes."
    elif len(names) > 1:
        head = "The ranks are in different collective calls"
        hint = "Every rank has to make the same calls in the same order; look for a call inside `if is_main_process`."
    else:
        head = f"The ranks called {names.pop()}() with data that differs in structure, shape or dtype"
        hint = "Bring them to one size with pad_across_processes() first, or use gather_for_metrics()."
    return "\n".join([f"{head}; nothing was exchanged. This is rank {rank}.", *lines, hint])
