"""The Trainer's own checkpoints: going on from one is as if nobody had stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from clients.jobs import Told, llama, sentences, together, train

SAVING = {"save_strategy": "steps", "save_steps": 5}


def dropping() -> nn.Module:
    """With dropout, so that the state of the random numbers counts."""
    return llama(attention_dropout=0.3)


def goes_on(whole: list[Told], rest: list[Told], at: int = 5) -> None:
    """The steps and losses after ``at`` are the same to the last digit."""
    assert together(rest) == together(whole)[at:]
    for w, r in zip(whole, rest, strict=True):
        assert w.losses[at:] == r.losses[-len(w.losses[at:]) :]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="as it is"),
        pytest.param({"gradient_accumulation_steps": 2}, id="accumulated"),
        pytest.param({"accelerator_config": {"dispatch_batches": True}}, id="dispatched"),
        pytest.param({"accelerator_config": {"split_batches": True}}, id="split"),
        pytest.param({"accelerator_config": {"use_seedable_sampler": False}}, id="torch's sampler"),
        pytest.param({"dataloader_num_workers": 1}, id="a worker"),
        pytest.param({"fp16": True, "use_cpu": True}, id="fp16"),
    ],
)
def test_resumes_inside_an_epoch(tmp_path: Path, ranks: int, settings: dict[str, Any]) -> None:
    job = {"model": dropping, "data": sentences(34, ragged=True), "max_steps": -1, "num_train_epochs": 2, **settings}
    job["per_device_train_batch_size"] = 4 // ranks
    whole = train(tmp_path / "a", ranks, **SAVING, **job)
    rest = train(tmp_path / "b", ranks, resume=str(tmp_path / "a" / "checkpoint-5"), **job)
    goes_on(whole, rest)


def test_resumes_in_a_later_epoch_from_the_newest(tmp_path: Path) -> None:
    job = {"data": sentences(12), "max_steps": -1, "num_train_epochs": 3}
    whole = train(tmp_path, 2, save_strategy="steps", save_steps=4, save_total_limit=2, **job)
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-8", "checkpoint-9"]
    torch.save(None, tmp_path / "unrelated")
    rest = train(tmp_path / "b", 2, resume=str(tmp_path / "checkpoint-8"), **job)
    goes_on(whole, rest, at=8)


def test_the_newest_checkpoint_is_found(tmp_path: Path) -> None:
    job = {"data": sentences(24), "max_steps": 5}
    train(tmp_path, 2, save_strategy="steps", save_steps=3, **job)
    told = train(tmp_path, 2, resume=True, **{**job, "max_steps": 8})
    assert [len(t.steps) for t in told] == [3, 3]


def test_a_stream_goes_on(tmp_path: Path) -> None:
    from clients.test_trainer import Stream

    whole = train(tmp_path / "a", 2, data=Stream(), **SAVING)
    rest = train(tmp_path / "b", 2, data=Stream(), resume=str(tmp_path / "a" / "checkpoint-5"))
    goes_on(whole, rest)


def test_two_ranks_go_on_as_one(tmp_path: Path) -> None:
    """The same global batches; only the random numbers of the ranks differ, and nothing here draws any."""
    whole = train(tmp_path / "a", 2, **SAVING)
    rest = train(tmp_path / "b", 1, resume=str(tmp_path / "a" / "checkpoint-5"), gradient_accumulation_steps=2)
    assert [sorted(step) for step in together(rest)] == [sorted(step) for step in together(whole)[5:]]
    gaps = [abs(a - b) for a, b in zip(whole[0].losses[5:], rest[0].losses[-5:], strict=True)]
    assert max(gaps) < 1e-4


def test_only_the_model_is_saved(tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    train(tmp_path, 2, max_steps=2, save_strategy="steps", save_steps=2, save_only_model=True)
    names = {path.name for path in (tmp_path / "checkpoint-2").iterdir()}
    assert "model.safetensors" in names and not names & {"optimizer.pt", "scheduler.pt", "rng_state_0.pth"}
    loaded = LlamaForCausalLM.from_pretrained(tmp_path / "checkpoint-2")
    assert not torch.equal(loaded.lm_head.weight, llama().lm_head.weight)


def test_the_checkpoint_is_the_plain_one(tmp_path: Path) -> None:
    """The optimizer's file loads into a plain optimizer of plain PyTorch."""
    train(tmp_path, 2, max_steps=2, save_strategy="steps", save_steps=2, weight_decay=0.0)
    folder = tmp_path / "checkpoint-2"
    state = torch.load(folder / "optimizer.pt", weights_only=True)
    model = llama()
    groups = [{"params": list(model.parameters())[:0]} for _ in state["param_groups"]]
    wanted = [len(group["params"]) for group in state["param_groups"]]
    parameters = iter(model.parameters())
    for group, count in zip(groups, wanted, strict=True):
        group["params"] = [next(parameters) for _ in range(count)]
    optimizer = torch.optim.AdamW(groups)
    optimizer.load_state_dict(state)
    assert len(optimizer.state) == len(list(model.parameters()))
