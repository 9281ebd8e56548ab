"""LoRA adapters of peft, trained by the Trainer: only they are trained, and they load again into a plain model."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from clients.jobs import assert_as_plain, llama, sentences, train
from clients.test_trainer_sharded import env, fsdp

LORA = LoraConfig(r=8, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM", lora_dropout=0.0)
RATE = 5e-2


def adapted() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return get_peft_model(llama(), LORA)


def ways() -> list[Any]:
    sharded = [pytest.param(2, v, {**env(v), "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT"}, id=f"FSDP{v}") for v in (1, 2)]
    return [pytest.param(1, 0, {}, id="one process"), pytest.param(2, 0, {}, id="DDP"), *sharded]


@pytest.mark.parametrize(("ranks", "version", "environment"), ways())
def test_adapters_are_trained(tmp_path: Path, ranks: int, version: int, environment: dict[str, str]) -> None:
    def after(trainer: Any) -> dict[str, float]:
        trainer.save_model(str(tmp_path / "out"))
        whole = trainer.accelerator.get_state_dict(trainer.model_wrapped)
        return {name: float(w.abs().sum()) for name, w in whole.items() if "lora_B" in name}

    job = {"data": sentences(8), "learning_rate": RATE, "max_steps": 24, "per_device_train_batch_size": 4 // ranks}
    settings = fsdp(version) if version else {}
    told = train(tmp_path, ranks, env=environment, model=adapted, after=after, **job, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_as_plain(told, model=adapted, rate=RATE)
    assert sum(told[0].losses[-4:]) < sum(told[0].losses[:4]) - 0.3
    assert len(told[0].extra) == 6 and all(told[0].extra.values())
    if version == 1:
        return  # peft itself finds no adapter among names with a wrapper of version 1 inside: our checkpoints do
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = PeftModel.from_pretrained(llama(), tmp_path / "out")
    weights = {name: p for name, p in again.named_parameters() if "lora_B" in name}
    assert len(weights) == 6 and all(p.abs().sum() > 0 for p in weights.values())


@pytest.mark.parametrize("version", [1, 2])
def test_adapters_go_on(tmp_path: Path, version: int) -> None:
    """The Trainer saves the adapters alone, and resumes from them."""
    environment = {"FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT", **env(version)}
    job = {"env": environment, "model": adapted, "data": sentences(), "learning_rate": RATE, **fsdp(version)}
    whole = train(tmp_path / "a", 2, save_strategy="steps", save_steps=5, **job)
    rest = train(tmp_path / "b", 2, resume=str(tmp_path / "a" / "checkpoint-5"), **job)
    for w, r in zip(whole, rest, strict=True):
        assert w.losses[5:] == pytest.approx(r.losses[-5:], abs=1e-6)
