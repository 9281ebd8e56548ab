"""The Trainer's ``deepspeed`` argument, and DeepSpeed that the launch asks for."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from clients.jobs import Told, assert_as_plain, llama, sentences, together, train
from deepspeed_jobs import warm

pytestmark = pytest.mark.usefixtures("deepspeed_is_warm")
deepspeed_is_warm = pytest.fixture(scope="module")(warm)


def configuration(stage: int, **more: Any) -> dict[str, Any]:
    """All that the Trainer knows is left to it."""
    return {
        "train_micro_batch_size_per_gpu": "auto",
        "train_batch_size": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": stage, "stage3_gather_16bit_weights_on_model_save": stage == 3},
        **more,
    }


def is_deepspeed(told: list[Told], stage: int | None = None) -> None:
    for t in told:
        assert t.kind == "DEEPSPEED"
        assert t.wrapped == "DeepSpeedEngine"
        if stage is not None:
            assert t.extra == stage


def stage_of(trainer: Any) -> int:
    return int(trainer.model_wrapped.zero_optimization_stage())


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_trains(tmp_path: Path, stage: int, ranks: int) -> None:
    given = configuration(stage)
    untouched = copy.deepcopy(given)
    told = train(tmp_path, ranks, deepspeed=given, after=stage_of)
    is_deepspeed(told, stage)
    assert_as_plain(told)
    assert given == untouched


@pytest.mark.parametrize("stage", [2, 3])
def test_from_a_file(tmp_path: Path, stage: int) -> None:
    file = tmp_path / "deepspeed.json"
    file.write_text(json.dumps(configuration(stage)))
    told = train(tmp_path / "out", 2, deepspeed=str(file), after=stage_of)
    is_deepspeed(told, stage)
    assert_as_plain(told)


@pytest.mark.parametrize("stage", [2, 3])
def test_accumulates(tmp_path: Path, stage: int) -> None:
    data = sentences(40, ragged=True)
    told = train(
        tmp_path,
        2,
        data=data,
        deepspeed=configuration(stage),
        gradient_accumulation_steps=3,
        max_steps=-1,
        num_train_epochs=2,
    )
    is_deepspeed(told)
    assert [len(step) for step in together(told)] == [12, 12, 12, 4] * 2
    assert_as_plain(told, data=data)


def test_in_bf16(tmp_path: Path) -> None:
    told = train(tmp_path, 2, deepspeed=configuration(2), bf16=True, use_cpu=True)
    is_deepspeed(told)
    assert_as_plain(told, within=5e-2)


def test_optimizer_and_schedule_of_the_configuration(tmp_path: Path) -> None:
    own = {
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto", "torch_adam": True},
        },
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"},
        },
    }

    class Rates(TrainerCallback):
        def __init__(self) -> None:
            self.seen: list[float] = []

        def on_pre_optimizer_step(self, *args: Any, optimizer: Any, **kwargs: Any) -> None:
            self.seen.append(optimizer.param_groups[0]["lr"])

    rates = Rates()
    told = train(
        tmp_path,
        2,
        deepspeed=configuration(2, **own),
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=4,
        more={"callbacks": [rates]},
        after=lambda trainer: rates.seen,
    )
    is_deepspeed(told)
    for t in told:
        assert t.extra == sorted(t.extra) and t.extra[0] < 1e-3 and t.extra[-1] == pytest.approx(1e-2)
    assert_as_plain(told, rates=told[0].extra)


@pytest.mark.parametrize("stage", [2, 3])
def test_resumes_inside_an_epoch(tmp_path: Path, stage: int) -> None:
    job = {"deepspeed": configuration(stage)}
    whole = train(tmp_path / "a", 2, save_strategy="steps", save_steps=5, **copy.deepcopy(job))
    rest = train(tmp_path / "b", 2, resume=str(tmp_path / "a" / "checkpoint-5"), **copy.deepcopy(job))
    assert together(rest) == together(whole)[5:]
    for w, r in zip(whole, rest, strict=True):
        assert w.losses[5:] == r.losses[-5:]


@pytest.mark.parametrize("stage", [2, 3])
def test_what_is_saved_loads_plainly(tmp_path: Path, stage: int) -> None:
    from transformers import LlamaForCausalLM

    def after(trainer: Any) -> float:
        trainer.save_model(str(tmp_path / "out"))
        return trainer.evaluate()["eval_loss"]  # type: ignore[no-any-return]

    rows = sentences(8)
    told = train(tmp_path, 2, deepspeed=configuration(stage), evaluation=rows, after=after)
    model = LlamaForCausalLM.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        logits = model(input_ids=torch.stack([row["input_ids"] for row in rows])).logits
    labels = torch.stack([row["labels"] for row in rows])
    wanted = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    assert all(abs(t.extra - wanted.item()) < 1e-4 for t in told)
    assert not torch.equal(model.lm_head.weight, llama().lm_head.weight)


def test_a_script_without_arguments_under_a_launch(tmp_path: Path) -> None:
    told = train(
        tmp_path,
        2,
        env={
            "ACCELERATE_USE_DEEPSPEED": "true",
            "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2",
            "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "1",
        },
        after=stage_of,
    )
    is_deepspeed(told, 2)
    assert_as_plain(told)
