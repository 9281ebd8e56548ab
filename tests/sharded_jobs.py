"""A small language model, trained by plain PyTorch in one process and sharded on any number of ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import GradientAccumulationPlugin

WORDS, LENGTH = 11, 5


class Block(nn.Module):
    """Norm, two linear layers, a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Embedding, blocks, head; sizes that no number of ranks divides, and a buffer."""

    _no_split_modules = ["Block"]

    def __init__(self, width: int = 13, blocks: int = 2, *, tied: bool = False, scalar: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, WORDS, bias=False)
        self.register_buffer("shift", torch.zeros(WORDS))
        if scalar:
            self.scale = nn.Parameter(torch.tensor(1.0))
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x) * getattr(self, "scale", 1.0) + self.shift


def fresh(seed: int = 0, **kwargs: Any) -> Net:
    """The same model every time. Not for threads: they share the generator."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net(**kwargs)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


@dataclass
class Job:
    """What is trained, from ``model``: 20 steps of a global batch of 8, in ``accumulate`` micro-batches each."""

    model: nn.Module
    steps: int = 20
    accumulate: int = 1
    clip: float | None = None
    norm_type: float = 2.0
    optimizer: Callable[[Any], torch.optim.Optimizer] = adamw
    sync_each_batch: bool = False

    def batches(self) -> list[list[torch.Tensor]]:
        generator = torch.Generator().manual_seed(3)
        size = (8, LENGTH + 1)
        return [
            [torch.randint(0, WORDS, size, generator=generator) for _ in range(self.accumulate)]
            for _ in range(self.steps)
        ]


@dataclass
class Result:
    """Mean losses of the steps, norms of the clippings, and whole weights by name."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    extra: Any = None


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def plain(job: Job) -> Result:
    """The oracle."""
    model, result = copy.deepcopy(job.model), Result()
    optimizer = job.optimizer([p for p in model.parameters() if p.requires_grad])
    for step in job.batches():
        total = 0.0
        for tokens in step:
            loss = loss_of(model, tokens) / len(step)
            loss.backward()
            total += loss.item()
        if job.clip is not None:
            result.norms.append(nn.utils.clip_grad_norm_(model.parameters(), job.clip, job.norm_type).item())
        optimizer.step()
        optimizer.zero_grad()
        result.losses.append(total)
    result.weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    return result


def plugin(version: int = 2, **kwargs: Any) -> FullyShardedDataParallelPlugin:
    """One that cuts the model by its blocks, unless ``kwargs`` say otherwise."""
    kwargs.setdefault("auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
    if version == 1:
        kwargs.setdefault("use_orig_params", True)
    return FullyShardedDataParallelPlugin(fsdp_version=version, **kwargs)


def accelerator(job: Job, fsdp_plugin: Any, **kwargs: Any) -> Accelerator:
    accumulation = GradientAccumulationPlugin(num_steps=job.accumulate, sync_each_batch=job.sync_each_batch)
    return Accelerator(fsdp_plugin=fsdp_plugin, gradient_accumulation_plugin=accumulation, **kwargs)


def prepare_together(acc: Accelerator, job: Job, model: nn.Module) -> tuple[Any, Any]:
    optimizer = job.optimizer([p for p in model.parameters() if p.requires_grad])
    return acc.prepare(model, optimizer)


def prepare_after(acc: Accelerator, job: Job, model: nn.Module) -> tuple[Any, Any]:
    """The optimizer is built on the prepared model."""
    model = acc.prepare(model)
    return model, acc.prepare(job.optimizer([p for p in model.parameters() if p.requires_grad]))


def prepare_late(acc: Accelerator, job: Job, model: nn.Module) -> tuple[Any, Any]:
    """The optimizer is built on the bare model and prepared in a later call."""
    optimizer = job.optimizer([p for p in model.parameters() if p.requires_grad])
    return acc.prepare(model), acc.prepare(optimizer)


def train(acc: Accelerator, job: Job, model: Any, optimizer: Any) -> Result:
    """Collective. The job on a prepared model, each data-parallel rank taking its part of every batch."""
    result, spec = Result(), acc.strategy.shard_spec()
    for step in job.batches():
        total = 0.0
        for tokens in step:
            with acc.accumulate(model):
                loss = loss_of(model, tokens.chunk(spec.count)[spec.index])
                acc.backward(loss)
                if job.clip is not None and acc.sync_gradients:
                    result.norms.append(float(acc.clip_grad_norm_(model.parameters(), job.clip, job.norm_type)))
                optimizer.step()
                optimizer.zero_grad()
            total += mean_over_ranks(loss) / len(step)
        result.losses.append(total)
    state = acc.strategy.state().full_state_dict(model)
    result.weights = {name: tensor.detach().clone() for name, tensor in state.items()}
    return result


def mean_over_ranks(value: torch.Tensor) -> float:
    """Collective."""
    value = value.detach().clone()
    dist.all_reduce(value)
    return float(value) / dist.get_world_size()


def run(
    job: Job,
    fsdp_plugin: Callable[[], Any],
    prepare: Callable[..., tuple[Any, Any]] = prepare_together,
    build: Callable[[int], nn.Module] | None = None,
    **kwargs: Any,
) -> Callable[[int, int], Result]:
    """A function for one rank that prepares, trains and tells. ``build(rank)`` gives a rank's own model."""

    def rank_main(rank: int, n: int) -> Result:
        acc = accelerator(job, fsdp_plugin(), **kwargs)
        own = copy.deepcopy(job.model) if build is None else build(rank)
        model, optimizer = prepare(acc, job, own)
        result = train(acc, job, model, optimizer)
        result.extra = {
            "held": sum(getattr(p, "to_local", lambda p=p: p)().numel() for p in model.parameters()),
            "type": str(acc.distributed_type.value),
        }
        return result

    return rank_main


def assert_same(found: Result, wanted: Result, tolerance: float = 1e-6) -> None:
    """Losses, norms and weights agree within ``tolerance``, relative."""
    assert len(found.losses) == len(wanted.losses)
    worst = max(abs(a - b) / abs(b) for a, b in zip(found.losses, wanted.losses, strict=True))
    assert worst <= tolerance, f"losses differ by {worst}"
    assert len(found.norms) == len(wanted.norms)
    for a, b in zip(found.norms, wanted.norms, strict=True):
        assert abs(a - b) <= 4 * tolerance * abs(b), f"norms {a} and {b}"
    if found.weights:
        assert sorted(found.weights) == sorted(wanted.weights)
        for name, tensor in wanted.weights.items():
            gap = (found.weights[name].float() - tensor).abs().max().item()
            assert gap <= 20 * tolerance * max(1.0, tensor.abs().max().item()), f"{name} differs by {gap}"
