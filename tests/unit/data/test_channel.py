"""Batches as bytes, and their way from one rank to the others."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from queue import Queue
from typing import Any

import pytest
import torch

from accelerate.comm.solo import SoloCollectives
from accelerate.data.channel import Channel, Message, pack, unpack


def through(data: Any) -> Any:
    packed = pack(data)
    buffer = torch.full((packed.size + 100,), 255, dtype=torch.uint8)
    packed.write(buffer)
    return unpack(buffer)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(7),
        torch.tensor(3.5),
        torch.zeros(0, 4),
        torch.tensor([True, False]),
        torch.randn(3, 5).to(torch.bfloat16),
        torch.randn(4, 6).t(),
        torch.randn(3, dtype=torch.complex128).conj(),
        torch.arange(5, dtype=torch.int8)[::2],
        torch.eye(3).to_sparse(),
        torch.arange(4.0, requires_grad=True),
        torch.zeros(2, device="meta"),
    ],
    ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}{tensor.layout}",
)
def test_a_tensor_arrives_as_it_was(tensor: torch.Tensor) -> None:
    got = through([1, tensor, tensor])
    for each in got[1:]:
        assert each.dtype == tensor.dtype and each.shape == tensor.shape and each.layout == tensor.layout
        assert tensor.is_meta or torch.equal(each.to_dense(), tensor.to_dense())


@dataclass
class Record:
    value: torch.Tensor
    note: str


def test_anything_around_tensors_arrives_as_it_was() -> None:
    data = {"a": [None, True, "text", 2.5], "b": (Record(torch.arange(3), "n"), {1: {2: torch.ones(2)}})}
    got = through(data)
    assert got["a"] == data["a"] and isinstance(got["b"], tuple)
    assert got["b"][0].value.tolist() == [0, 1, 2] and got["b"][0].note == "n"
    assert got["b"][1][1][2].tolist() == [1, 1]


def test_a_lone_rank_gets_its_own_message() -> None:
    channel = Channel(SoloCollectives(), "loader", [0])
    message = Message(status=1, data="x")
    channel.begin()
    assert channel.reads and channel.send([message]) is message
    channel.leave()


class Line:
    """A group of two ranks that are threads: what rank 0 broadcasts goes through a queue."""

    def __init__(self, rank: int, queue: Queue[Any]) -> None:
        self.rank, self.size, self.queue = rank, 2, queue
        self.sizes: list[int] = []

    def broadcast_objects(self, objs: list[Any], src: int = 0) -> list[Any]:
        if self.rank == src:
            self.sizes.append(objs[0][1].numel())
            self.queue.put(objs)
            return objs
        return self.queue.get(timeout=10)


def test_messages_of_changing_sizes() -> None:
    queue: Queue[Any] = Queue()
    ends = [Line(rank, queue) for rank in range(2)]
    lengths = [1, 10, 5_000, 5_000, 4_000, 90_000, 3, 3, 0, 700]
    got: list[Any] = []

    def listen() -> None:
        channel = Channel(ends[1], "loader", [0, 1])
        got.extend(channel.receive() for _ in lengths)

    listener = threading.Thread(target=listen)
    listener.start()
    sender = Channel(ends[0], "loader", [0, 1])
    for number, length in enumerate(lengths):
        sender.send([Message(status=1), Message(status=2, number=number, data=torch.arange(length))])
    listener.join(10)
    assert [(message.status, message.number, message.data.numel()) for message in got] == [
        (2, number, length) for number, length in enumerate(lengths)
    ]
    assert all(torch.equal(message.data, torch.arange(message.data.numel())) for message in got)
    assert len(ends[0].sizes) == len(lengths) + 3, "one exchange a message, but for those that outgrew the last"
