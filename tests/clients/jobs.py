"""Small jobs of transformers' Trainer, on one process or several, and the same training in plain PyTorch."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # forks find it imported
import transformers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import accelerate
from accelerate.test_utils.world import fork_process, fork_world

__all__ = ["CLOSE", "FIVE", "Job", "Recorder", "Told", "collate", "llama", "plain", "sentences", "train", "world"]

FIVE = int(transformers.__version__.split(".")[0]) >= 5
WORDS, LONGEST, RATE = 128, 12, 1e-2
CLOSE = 1e-4
OURS = str(Path(accelerate.__file__).parent)


def llama(**overrides: Any) -> LlamaForCausalLM:
    """The same weights every time."""
    settings = {
        "vocab_size": WORDS,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
        **overrides,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(LlamaConfig(**settings))


def sentences(count: int = 48, *, ragged: bool = False) -> list[dict[str, torch.Tensor]]:
    """Sentence ``i`` begins with word ``i``, by which a job's records know it; the first word is no target."""
    generator = torch.Generator().manual_seed(1)
    rows = []
    for index in range(count):
        words = torch.randint(0, WORDS, (LONGEST,), generator=generator)
        words[0] = index
        words = words[: 4 + (5 * index) % (LONGEST - 3)] if ragged else words
        labels = words.clone()
        labels[0] = -100
        rows.append({"input_ids": words, "labels": labels})
    return rows


def collate(rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """One batch, padded to its longest sentence."""

    def padded(name: str, value: int) -> torch.Tensor:
        columns = [torch.as_tensor(row[name]) for row in rows]
        return nn.utils.rnn.pad_sequence(columns, batch_first=True, padding_value=value)

    words = padded("input_ids", WORDS - 1)
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    mask = (torch.arange(words.shape[1])[None] < lengths[:, None]).long()
    return {"input_ids": words, "attention_mask": mask, "labels": padded("labels", -100)}


class Recorder(TrainerCallback):
    """Which sentences the model was shown in each step of this rank, by their first words."""

    def __init__(self, model: nn.Module) -> None:
        self.steps: list[list[int]] = []
        self._now: list[int] = []
        model.register_forward_pre_hook(self._saw, with_kwargs=True)

    def _saw(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if module.training and "input_ids" in kwargs:
            self._now += kwargs["input_ids"][:, 0].tolist()

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.steps, self._now = [], []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.steps.append(self._now)
        self._now = []


@dataclass
class Told:
    """What one rank has to say of its job."""

    rank: int
    ranks: int
    kind: str
    wrapped: str
    losses: list[float]
    steps: list[list[int]]
    metrics: dict[str, float] = field(default_factory=dict)
    warned: list[str] = field(default_factory=list)
    extra: Any = None


@dataclass
class Job:
    """One training with the Trainer. What is not named here goes to ``TrainingArguments``."""

    folder: Path
    model: Callable[[], nn.Module] = llama
    data: Any = None
    evaluation: Any = None
    trainer: type[Trainer] = Trainer
    resume: Any = None
    before: Callable[[], Any] | None = None
    after: Callable[[Trainer], Any] | None = None
    more: dict[str, Any] = field(default_factory=dict)
    arguments: type[TrainingArguments] = TrainingArguments
    settings: dict[str, Any] = field(default_factory=dict)

    def build(self) -> tuple[Trainer, Recorder]:
        """The trainer, in the process that trains."""
        settings = {
            "output_dir": str(self.folder),
            "per_device_train_batch_size": 2,
            "per_device_eval_batch_size": 2,
            "max_steps": 10,
            "logging_steps": 1,
            "report_to": [],
            "save_strategy": "no",
            "learning_rate": RATE,
            "lr_scheduler_type": "constant",
            "disable_tqdm": True,
            **self.settings,
        }
        arguments = self.arguments(**settings)
        model = self.model()
        recorder = Recorder(model)
        more = {"data_collator": collate, **self.more}
        more["callbacks"] = [recorder, *more.get("callbacks", [])]
        data = sentences() if self.data is None else self.data
        trainer = self.trainer(model=model, args=arguments, train_dataset=data, eval_dataset=self.evaluation, **more)
        return trainer, recorder

    def __call__(self) -> Told:
        """Trains in this process, which is one of the job's ranks."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            held = self.before() if self.before is not None else None
            trainer, recorder = self.build()
            if self.settings.get("max_steps") != 0:
                trainer.train(resume_from_checkpoint=self.resume)
            extra = self.after(trainer) if self.after is not None else None
        del held
        acc = trainer.accelerator
        history = trainer.state.log_history
        return Told(
            rank=acc.process_index,
            ranks=acc.num_processes,
            kind=acc.distributed_type.value,
            wrapped=type(trainer.model_wrapped).__name__,
            losses=[float(entry["loss"]) for entry in history if "loss" in entry],
            steps=recorder.steps,
            metrics={name: value for entry in history for name, value in entry.items() if name.startswith("eval_")},
            warned=[f"{w.category.__name__}: {w.message}" for w in caught if w.filename.startswith(OURS)],
            extra=extra,
        )


def train(
    folder: Path, ranks: int = 2, *, env: dict[str, str] | None = None, timeout: float = 120.0, **job: Any
) -> list[Told]:
    """What each rank tells of one job; fields of :class:`Job` and settings of ``TrainingArguments`` by name."""
    fields = {name: job.pop(name) for name in list(job) if name in Job.__dataclass_fields__}
    told = world(Job(folder=folder, settings=job, **fields), ranks, env=env, timeout=timeout)
    assert [t.rank for t in told] == list(range(ranks))
    assert all(t.ranks == ranks for t in told)
    assert not any(t.warned for t in told), [t.warned for t in told]
    return told


def world(
    call: Callable[[], Any], ranks: int, *, env: dict[str, str] | None = None, timeout: float = 120.0
) -> list[Any]:
    """``call()`` on every rank: the one process of a plain ``python``, or processes as a launcher starts them."""

    def quietly() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a library's own; those of this package are looked at in Job
            return call()

    if ranks == 1:
        return fork_process(quietly, env=env, timeout=timeout).results()
    return fork_world(lambda rank, n: quietly(), ranks, init=False, env=env, timeout=timeout).results()


def together(told: Sequence[Told]) -> list[list[int]]:
    """The sentences of each step, over all ranks."""
    return [sum(step, []) for step in zip(*(t.steps for t in told), strict=True)]


def plain(
    steps: Sequence[Sequence[int]],
    *,
    data: Sequence[dict[str, torch.Tensor]] | None = None,
    model: Callable[[], nn.Module] = llama,
    clip: float = 1.0,
    rate: float = RATE,
    rates: Sequence[float] | None = None,
) -> list[float]:
    """Losses of plain PyTorch in one process that is shown the same sentences in each step, in one batch.

    ``rates`` are those of the steps, where ``rate`` is not that of all.
    """
    data = sentences() if data is None else data
    net = model().train()
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=rate, weight_decay=0.0)
    losses = []
    for at, step in enumerate(steps):
        if rates is not None:
            optimizer.param_groups[0]["lr"] = rates[at]
        batch = collate([data[index] for index in step])
        logits = net(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), batch["labels"][:, 1:].flatten())
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def assert_as_plain(told: Sequence[Told], *, within: float = CLOSE, **oracle: Any) -> None:
    """Every rank logged the losses of plain PyTorch on the same sentences."""
    wanted = plain(together(told), **oracle)
    assert len(wanted) >= 4
    for t in told:
        assert len(t.losses) == len(wanted)
        gaps = [abs(a - b) for a, b in zip(t.losses, wanted, strict=True)]
        assert max(gaps[:10]) <= within, f"rank {t.rank}: {t.losses} beside {wanted}"


def own_environment(prefix: str) -> dict[str, str]:
    """The variables of this process that begin so."""
    return {name: value for name, value in os.environ.items() if name.startswith(prefix)}
