"""Small jobs of transformers' Trainer, written as JSON to a file: ``python trainer.py OUT``.

Imports nothing of this project by name, so that any interpreter with transformers and an accelerate can run it.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # forks find it imported
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

WORDS, LENGTH = 64, 10


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=32,
            attention_dropout=0.0,
        )
    )


def rows(count: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    made = []
    for index in range(count):
        words = torch.randint(0, WORDS, (LENGTH,), generator=generator)
        words[0] = index
        labels = words.clone()
        labels[: 1 + index % 5] = -100
        made.append({"input_ids": words, "labels": labels})
    return made


class Seen(TrainerCallback):
    """First words of what the model was shown in training, and how many rows it was shown in evaluation."""

    def __init__(self, net: torch.nn.Module) -> None:
        self.trained: list[int] = []
        self.evaluated = 0
        net.register_forward_pre_hook(self._saw, with_kwargs=True)

    def _saw(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if module.training:
            self.trained += kwargs["input_ids"][:, 0].tolist()
        else:
            self.evaluated += len(kwargs["input_ids"])


def job(folder: str, *, resume: str | None = None, **settings: Any) -> dict[str, Any]:
    """Trains in this process and tells what it saw, its losses and its metrics."""
    net = model()
    seen = Seen(net)
    settings = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "logging_steps": 1,
        "learning_rate": 1e-2,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        **settings,
    }
    arguments = TrainingArguments(output_dir=folder, **settings)
    counted: dict[str, int] = {}

    def metrics(prediction: Any) -> dict[str, float]:
        right = (prediction.predictions[:, :-1].argmax(-1) == prediction.label_ids[:, 1:]).sum()
        counted["rows"] = len(prediction.label_ids)
        return {"right": float(right), "rows": float(len(prediction.label_ids))}

    trainer = Trainer(
        model=net,
        args=arguments,
        train_dataset=rows(23),
        eval_dataset=rows(13),
        compute_metrics=metrics,
        callbacks=[seen],
    )
    started = time.perf_counter()
    trainer.train(resume_from_checkpoint=resume)
    seconds = time.perf_counter() - started
    evaluation = trainer.evaluate()
    history = trainer.state.log_history
    return {
        "losses": [float(entry["loss"]) for entry in history if "loss" in entry],
        "norms": [float(entry["grad_norm"]) for entry in history if "grad_norm" in entry],
        "rates": [float(entry["learning_rate"]) for entry in history if "learning_rate" in entry],
        "metrics": {
            name: value for name, value in evaluation.items() if not name.endswith(("_second", "_runtime", "_time"))
        },
        "trained": seen.trained,
        "evaluated": seen.evaluated,
        "seconds": seconds,
        "weights": float(sum(p.detach().double().abs().sum() for p in net.parameters())),
    }


def one(call: Callable[[], Any]) -> list[Any]:
    return _fork(call, [{}])


def two(call: Callable[[], Any]) -> list[Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return _fork(
        call,
        [
            {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            for rank in range(2)
        ],
    )


def _fork(call: Callable[[], Any], environments: list[dict[str, str]]) -> list[Any]:
    context = multiprocessing.get_context("fork")
    gc.freeze()
    ranks = []
    for environment in environments:
        ours, theirs = context.Pipe()
        process = context.Process(target=_rank, args=(call, environment, theirs))
        process.start()
        theirs.close()
        ranks.append((process, ours))
    told = [pipe.recv() for _, pipe in ranks]
    for process, _ in ranks:
        process.join()
    return told


def _rank(call: Callable[[], Any], environment: dict[str, str], pipe: Any) -> None:
    os.environ.update(environment)
    pipe.send(call())


def main(out: Path) -> None:
    """Runs every job and writes what each rank told."""
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for ranks, world in ((1, one), (2, two)):
            for steps in (1, 3):
                name = f"{ranks} x {steps}"
                place = f"{folder}/{ranks}-{steps}"
                saving = {"save_strategy": "steps", "save_steps": 2, "gradient_accumulation_steps": steps}
                told[name] = world(lambda place=place, saving=saving: job(place, **saving))
                told[f"{name}, resumed"] = world(
                    lambda place=place, steps=steps: job(
                        f"{place}-again",
                        resume=f"{place}/checkpoint-2",
                        save_strategy="no",
                        gradient_accumulation_steps=steps,
                    )
                )
            told[f"{ranks} x 1, timed"] = world(
                lambda place=f"{folder}/{ranks}-timed", epochs=60 // ranks: job(
                    place, save_strategy="no", num_train_epochs=epochs, logging_steps=50
                )
            )
            told[f"{ranks} x 1, no seedable sampler"] = world(
                lambda place=f"{folder}/{ranks}": job(
                    place, save_strategy="no", accelerator_config={"use_seedable_sampler": False}
                )
            )
    out.write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
