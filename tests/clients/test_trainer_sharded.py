"""The Trainer's own FSDP arguments, and the launch's, in both versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from accelerate import FullyShardedDataParallelPlugin
from accelerate.test_utils.forked import RanksFailedError
from clients.jobs import FIVE, Told, assert_as_plain, llama, sentences, together, train

LAYER = "LlamaDecoderLayer"
VERSIONS = [1, 2]


def fsdp(version: int, **config: Any) -> dict[str, Any]:
    """Arguments of the Trainer. Before version 5 it knew the words of version 1 and left the version to the launch."""
    config = {"transformer_layer_cls_to_wrap": [LAYER], **config}
    if FIVE:
        return {"fsdp": True, "fsdp_config": {"version": version, **config}}
    return {"fsdp": "full_shard auto_wrap", "fsdp_config": config}


def env(version: int) -> dict[str, str]:
    return {} if FIVE else {"FSDP_VERSION": str(version)}


def is_sharded(told: list[Told], version: int) -> None:
    for t in told:
        assert t.kind == "FSDP"
        assert t.wrapped == ("FSDPLlamaForCausalLM" if version == 2 else "FullyShardedDataParallel")


def held(trainer: Any) -> int:
    """How many numbers of the parameters this rank holds."""
    return sum(getattr(p, "to_local", lambda p=p: p)().numel() for p in trainer.model.parameters())


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("version", VERSIONS)
def test_trains(tmp_path: Path, version: int, ranks: int) -> None:
    told = train(tmp_path, ranks, env=env(version), after=held, **fsdp(version))
    is_sharded(told, version)
    assert_as_plain(told)
    whole = sum(p.numel() for p in llama().parameters())
    assert all(t.extra < whole for t in told)


@pytest.mark.parametrize("version", VERSIONS)
def test_from_a_file(tmp_path: Path, version: int) -> None:
    arguments = fsdp(version)
    file = tmp_path / "fsdp.json"
    file.write_text(json.dumps({f"fsdp_{name}": value for name, value in arguments["fsdp_config"].items()}))
    told = train(tmp_path, 2, env=env(version), **{**arguments, "fsdp_config": str(file)})
    is_sharded(told, version)
    assert_as_plain(told)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("each", [True, False])
def test_accumulates(tmp_path: Path, version: int, each: bool) -> None:
    data = sentences(40, ragged=True)
    told = train(
        tmp_path,
        2,
        env=env(version),
        data=data,
        gradient_accumulation_steps=3,
        max_steps=-1,
        num_train_epochs=2,
        accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": each}},
        **fsdp(version),
    )
    assert [len(step) for step in together(told)] == [12, 12, 12, 4] * 2
    assert_as_plain(told, data=data)


@pytest.mark.parametrize("version", VERSIONS)
def test_low_precision(tmp_path: Path, version: int) -> None:
    told = train(tmp_path, 2, env=env(version), bf16=True, use_cpu=True, **fsdp(version))
    is_sharded(told, version)
    assert_as_plain(told, within=3e-2)


@pytest.mark.parametrize("version", VERSIONS)
def test_checkpointed_activations(tmp_path: Path, version: int) -> None:
    told = train(
        tmp_path,
        2,
        env=env(version),
        model=lambda: llama(use_cache=False),  # a cache would be filled twice
        after=lambda trainer: any("checkpoint" in name for name, _ in trainer.model.named_modules()),
        **fsdp(version, activation_checkpointing=True),
    )
    assert all(t.extra for t in told)
    assert_as_plain(told)


def test_evaluation_and_prediction(tmp_path: Path) -> None:
    rows = sentences(7)

    def after(trainer: Any) -> tuple[float, list[int]]:
        return trainer.evaluate()["eval_loss"], list(trainer.predict(rows).predictions.shape)

    told = train(tmp_path, 2, env=env(2), evaluation=rows, after=after, **fsdp(2))
    plainly = train(tmp_path, 2, evaluation=rows, after=after)
    for t, p in zip(told, plainly, strict=True):
        assert abs(t.extra[0] - p.extra[0]) < 1e-4
        assert t.extra[1] == p.extra[1] == [7, 12, 128]


def test_evaluation_without_training(tmp_path: Path) -> None:
    def after(trainer: Any) -> float:
        return trainer.evaluate()["eval_loss"]  # type: ignore[no-any-return]

    rows = sentences(7)
    told = train(tmp_path, 2, env=env(2), max_steps=0, evaluation=rows, after=after, **fsdp(2))
    plainly = train(tmp_path, 2, max_steps=0, evaluation=rows, after=after)
    assert all(abs(t.extra - p.extra) < 1e-5 for t, p in zip(told, plainly, strict=True))


@pytest.mark.parametrize("kind", ["FULL_STATE_DICT", "SHARDED_STATE_DICT"])
@pytest.mark.parametrize("version", VERSIONS)
def test_resumes_inside_an_epoch(tmp_path: Path, version: int, kind: str) -> None:
    """The rest of the epoch in the order it would have had, and the same losses to the last digit."""
    arguments = fsdp(version, state_dict_type=kind)
    settings = {"FSDP_STATE_DICT_TYPE": kind, **env(version)}
    whole = train(tmp_path / "a", 2, env=settings, save_strategy="steps", save_steps=5, **arguments)
    rest = train(tmp_path / "b", 2, env=settings, resume=str(tmp_path / "a" / "checkpoint-5"), **arguments)
    assert together(rest) == together(whole)[5:]
    for w, r in zip(whole, rest, strict=True):
        assert w.losses[5:] == r.losses[-5:]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_saved_loads_plainly(tmp_path: Path, version: int) -> None:
    from transformers import LlamaForCausalLM

    told = train(
        tmp_path,
        2,
        env={"FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT", **env(version)},
        evaluation=sentences(8),
        after=lambda trainer: (trainer.save_model(str(tmp_path / "out")), trainer.evaluate()["eval_loss"])[1],
        **fsdp(version),
    )
    model = LlamaForCausalLM.from_pretrained(tmp_path / "out").eval()
    rows = sentences(8)
    with torch.no_grad():
        logits = model(input_ids=torch.stack([row["input_ids"] for row in rows])).logits
    wanted = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), torch.stack([row["labels"] for row in rows])[:, 1:].flatten()
    )
    assert all(abs(t.extra - wanted.item()) < 1e-4 for t in told)


def test_only_the_model_is_saved(tmp_path: Path) -> None:
    train(
        tmp_path,
        2,
        env={"FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT", **env(2)},
        max_steps=2,
        save_strategy="steps",
        save_steps=2,
        save_only_model=True,
        **fsdp(2),
    )
    names = {path.name for path in (tmp_path / "checkpoint-2").iterdir()}
    assert "model.safetensors" in names
    assert not any("optimizer" in name or name.startswith(("rng", "scheduler")) for name in names)


LAUNCHED = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": LAYER,
    "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
}


def test_a_script_without_arguments_under_a_launch(tmp_path: Path) -> None:
    told = train(tmp_path, 2, env=LAUNCHED)
    is_sharded(told, 2)
    assert_as_plain(told)


def test_arguments_that_agree_with_the_launch(tmp_path: Path) -> None:
    told = train(
        tmp_path,
        2,
        env=LAUNCHED,
        after=lambda trainer: trainer.accelerator.state.fsdp_plugin.fsdp_version,
        **fsdp(2, state_dict_type="SHARDED_STATE_DICT"),
    )
    is_sharded(told, 2)
    assert_as_plain(told)
    assert all(t.extra == 2 for t in told)


if FIVE:  # version 4 writes its arguments into the environment, over what the launch said

    def test_arguments_that_contradict_the_launch(tmp_path: Path) -> None:
        said = "reshard_after_forward=False in code and FSDP_RESHARD_AFTER_FORWARD=true from the launch contradict"
        with pytest.raises(RanksFailedError, match=said):
            train(
                tmp_path,
                2,
                env={**LAUNCHED, "FSDP_RESHARD_AFTER_FORWARD": "true"},
                **fsdp(2, reshard_after_forward=False),
            )


@pytest.mark.parametrize("efficient", [True, False])
def test_weights_that_rank_0_alone_reads(tmp_path: Path, efficient: bool) -> None:
    """``from_pretrained`` is told by the environment; without it every rank reads."""
    from transformers import LlamaForCausalLM

    llama().save_pretrained(tmp_path / "in")
    told = train(
        tmp_path,
        2,
        env={**LAUNCHED, "FSDP_CPU_RAM_EFFICIENT_LOADING": str(efficient).lower()},
        before=_group,
        model=lambda: LlamaForCausalLM.from_pretrained(tmp_path / "in"),
    )
    is_sharded(told, 2)
    assert_as_plain(told)


def _group() -> None:
    from accelerate import PartialState

    PartialState()


def test_a_plugin_is_still_what_the_arguments_made(tmp_path: Path) -> None:
    told = train(
        tmp_path,
        2,
        env=env(2),
        max_steps=2,
        after=lambda trainer: isinstance(trainer.accelerator.state.fsdp_plugin, FullyShardedDataParallelPlugin),
        **fsdp(2),
    )
    assert all(t.extra for t in told)
