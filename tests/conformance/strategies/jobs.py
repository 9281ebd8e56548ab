"""One small training job, run by plain PyTorch in one process and through the façade on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration

FEATURES, CLASSES = 12, 5


class Block(nn.Module):
    """Norm, two linear layers, a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Two blocks between an input and an output layer."""

    _no_split_modules = ["Block"]

    def __init__(self, seed: int = 0, width: int = 16) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.inp = nn.Linear(FEATURES, width)
            self.blocks = nn.ModuleList([Block(width), Block(width)])
            self.out = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return self.out(x)


@dataclass(frozen=True)
class Job:
    """What is trained. ``batch`` is the global batch of one micro-step."""

    samples: int = 80
    batch: int = 8
    epochs: int = 2
    accumulate: int = 1
    clip: float | None = None
    lr: float = 1e-2
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
    shift: int = 0

    def dataset(self) -> TensorDataset:
        generator = torch.Generator().manual_seed(7)
        x = torch.randn(self.samples, FEATURES, generator=generator)
        y = torch.randint(0, CLASSES, (self.samples,), generator=generator)
        return TensorDataset(x, y)


@dataclass
class Result:
    """The mean loss of every micro-step, the norm of every clipping, and the weights at the end by canonical name."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


def plain(job: Job, precision: torch.dtype | None = None) -> Result:
    """The oracle: PyTorch alone, one process, the whole global batch."""
    result = Result()
    model = Net()
    optimizer = job.optimizer(model.parameters(), lr=job.lr)
    for _ in range(job.epochs):
        loader = DataLoader(job.dataset(), batch_size=job.batch)
        batches = list(loader)
        for index, (x, y) in enumerate(batches):
            start = index - index % job.accumulate
            length = min(job.accumulate, len(batches) - start)
            with torch.autocast("cpu", dtype=precision, enabled=precision is not None):
                logits = model(x)
            loss = nn.functional.cross_entropy(logits.float(), y)
            (loss / length).backward()
            result.losses.append(loss.item())
            if index - start == length - 1:
                if job.clip is not None:
                    result.norms.append(nn.utils.clip_grad_norm_(model.parameters(), job.clip).item())
                optimizer.step()
                optimizer.zero_grad()
    result.weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    return result


def through(accelerator: Accelerator, job: Job, n: int) -> Result:
    """The same job by the façade, each of ``n`` ranks taking its part of the global batch. Collective."""
    result = Result()
    model = Net()
    optimizer = job.optimizer(model.parameters(), lr=job.lr)
    loader = DataLoader(job.dataset(), batch_size=job.batch // n)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(job.epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x).float(), y)
                accelerator.backward(loss)
                result.losses.append(accelerator.gather(loss.detach()).mean().item())
                if job.clip is not None:
                    norm = accelerator.clip_grad_norm_(model.parameters(), job.clip)
                    if accelerator.sync_gradients:
                        result.norms.append(float(norm))
                optimizer.step()
                optimizer.zero_grad()
    state = accelerator.get_state_dict(model)
    result.weights = {name: tensor.detach().clone() for name, tensor in (state or {}).items()}
    result.extra["world"] = accelerator.num_processes
    result.extra["type"] = str(accelerator.distributed_type.value)
    return result


def make_accelerator(job: Job, **kwargs: Any) -> Accelerator:
    """An Accelerator for the job, its loaders as a plain loop reads them."""
    kwargs.setdefault("dataloader_config", DataLoaderConfiguration(even_batches=True))
    return Accelerator(gradient_accumulation_steps=job.accumulate, **kwargs)


def assert_same(found: Result, wanted: Result, tolerance: float) -> None:
    """Losses, norms and weights agree within ``tolerance``, relative to their size where that is above one."""
    assert len(found.losses) == len(wanted.losses)
    worst = max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(found.losses, wanted.losses, strict=True))
    assert worst <= tolerance, f"losses differ by {worst}"
    assert len(found.norms) == len(wanted.norms)
    for a, b in zip(found.norms, wanted.norms, strict=True):
        assert abs(a - b) <= tolerance * max(1.0, abs(b)), f"norms {a} and {b}"
    if found.weights:
        assert sorted(found.weights) == sorted(wanted.weights)
        for name, tensor in wanted.weights.items():
            gap = (found.weights[name].float() - tensor).abs().max().item()
            assert gap <= tolerance * max(1.0, tensor.abs().max().item()), f"{name} differs by {gap}"
