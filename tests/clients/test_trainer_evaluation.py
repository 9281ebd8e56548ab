"""Evaluation and prediction: every sample counts once, however the ranks share them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, EvalPrediction, Trainer

from clients.jobs import llama, sentences, together, train

MORE = 13  # no number of ranks and batch size divides it


def loss_of_each(model: nn.Module, rows: list[dict[str, torch.Tensor]]) -> list[float]:
    """Mean loss of each sentence, one by one, by plain PyTorch."""
    losses = []
    with torch.no_grad():
        for row in rows:
            logits = model(input_ids=row["input_ids"][None]).logits[0, :-1]
            losses.append(nn.functional.cross_entropy(logits, row["labels"][1:]).item())
    return losses


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_evaluation_without_training(tmp_path: Path, ranks: int) -> None:
    told = train(
        tmp_path,
        ranks,
        max_steps=0,
        evaluation=sentences(MORE),
        after=lambda trainer: (trainer.evaluate()["eval_loss"], type(trainer.model_wrapped).__name__),
    )
    wanted = np.mean(loss_of_each(llama().eval(), sentences(MORE)))
    # Trainer repeats the mean of a batch for each of its samples, the last batch's too.
    for t in told:
        assert t.extra[1] == "LlamaForCausalLM"
        assert abs(t.extra[0] - wanted) < (1e-6 if ranks == 1 else 2e-3)


# Trainer itself joins gathered objects by position, so lists of rows from several ranks are not for tensors.
@pytest.mark.parametrize(
    ("kind", "ranks"),
    [("arrays", 1), ("arrays", 2), ("objects", 1), ("in parts", 1), ("in parts", 2), ("batches", 1), ("batches", 2)],
)
def test_metrics_see_every_sample_once(tmp_path: Path, ranks: int, kind: str) -> None:
    seen: list[int] = []

    def metrics(prediction: EvalPrediction, compute_result: bool = True) -> dict[str, float]:
        labels, logits = prediction.label_ids, prediction.predictions
        if kind == "objects":  # a list of batches, each of arrays or of rows
            labels, logits = ([row for batch in part for row in batch] for part in (labels, logits))
        if torch.is_tensor(labels):
            labels, logits = labels.cpu().numpy(), logits.cpu().numpy()
        seen.extend(int(row[1]) for row in labels)
        right = sum(int((logit[:-1].argmax(-1) == row[1:]).sum()) for logit, row in zip(logits, labels, strict=True))
        if not compute_result:
            return {}
        return {"rows": len(seen), "right": right}

    rows = sentences(MORE)
    for index, row in enumerate(rows):
        row["labels"][1] = index
    settings: dict[str, Any] = {
        "arrays": {},
        "objects": {"eval_use_gather_object": True, "eval_do_concat_batches": False},
        "in parts": {"eval_accumulation_steps": 2},
        "batches": {"batch_eval_metrics": True},
    }[kind]
    told = train(
        tmp_path,
        ranks,
        max_steps=0,
        evaluation=rows,
        more={"compute_metrics": metrics},
        after=lambda trainer: (trainer.evaluate()["eval_rows"], sorted(seen)),
        **settings,
    )
    assert all(t.extra == (MORE, list(range(MORE))) for t in told)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_prediction_keeps_the_order(tmp_path: Path, ranks: int) -> None:
    """Sentences of different lengths, padded over the ranks."""
    rows = sentences(MORE, ragged=True)

    def after(trainer: Trainer) -> tuple[Any, Any]:
        output = trainer.predict(rows)
        return output.predictions, output.label_ids

    told = train(tmp_path, ranks, max_steps=0, after=after)
    model = llama().eval()
    for t in told:
        logits, labels = t.extra
        assert len(logits) == len(labels) == MORE
        for row, logit, label in zip(rows, logits, labels, strict=True):
            length = len(row["labels"])
            assert label[1:length].tolist() == row["labels"][1:].tolist()
            assert set(label[length:].tolist()) <= {-100}
            with torch.no_grad():
                wanted = model(input_ids=row["input_ids"][None]).logits[0]
            assert np.allclose(logit[:length], wanted.numpy(), atol=1e-5)


def test_several_sets_while_training(tmp_path: Path) -> None:
    """Evaluation inside an epoch, in the middle of the loader, changes nothing of the training."""
    sets = {"first": sentences(5), "second": sentences(MORE)}
    told = train(tmp_path, 2, evaluation=sets, eval_strategy="steps", eval_steps=3)
    without = train(tmp_path, 2)
    assert [t.losses for t in told] == [t.losses for t in without]
    assert together(told) == together(without)
    assert {"eval_first_loss", "eval_second_loss"} <= told[0].metrics.keys()
    assert told[0].metrics == {**told[0].metrics, **{k: v for k, v in told[1].metrics.items() if k.endswith("loss")}}


def test_the_best_model_is_loaded_at_the_end(tmp_path: Path) -> None:
    """A rate so high that it gets worse: the best checkpoint is not the last."""

    def after(trainer: Trainer) -> tuple[str, float, float]:
        return (
            Path(trainer.state.best_model_checkpoint).name,
            trainer.state.best_metric,
            trainer.evaluate(metric_key_prefix="again")["again_loss"],
        )

    told = train(
        tmp_path,
        2,
        evaluation=sentences(MORE),
        after=after,
        learning_rate=0.8,
        max_steps=6,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        save_total_limit=1,
    )
    for t in told:
        name, best, again = t.extra
        assert abs(best - again) < 1e-5
    kept = sorted(path.name for path in tmp_path.glob("checkpoint-*"))
    assert kept == sorted({told[0].extra[0]})


def test_in_low_precision(tmp_path: Path) -> None:
    told = train(
        tmp_path,
        2,
        max_steps=0,
        use_cpu=True,
        bf16=True,
        evaluation=sentences(MORE),
        after=lambda trainer: (trainer.evaluate()["eval_loss"], trainer.predict(sentences(3)).predictions.dtype),
    )
    wanted = np.mean(loss_of_each(llama().eval(), sentences(MORE)))
    for t in told:
        assert 0 < abs(t.extra[0] - wanted) < 2e-2
        assert t.extra[1] == np.float32


def classifier() -> BertForSequenceClassification:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return BertForSequenceClassification(
            BertConfig(
                vocab_size=128,
                hidden_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                intermediate_size=32,
                num_labels=2,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_classifier_learns_and_is_measured(tmp_path: Path, ranks: int) -> None:
    rows = [
        {"input_ids": torch.tensor([index, index % 2 + 5, 7]), "labels": torch.tensor(index % 2)} for index in range(41)
    ]

    def metrics(prediction: EvalPrediction) -> dict[str, float]:
        right = prediction.predictions.argmax(-1) == prediction.label_ids
        return {"accuracy": float(right.mean()), "rows": len(right)}

    told = train(
        tmp_path,
        ranks,
        model=classifier,
        data=rows,
        evaluation=rows,
        more={"data_collator": None, "compute_metrics": metrics},
        per_device_train_batch_size=8 // ranks,
        max_steps=30,
        after=lambda trainer: trainer.evaluate(),
    )
    for t in told:
        assert t.extra["eval_accuracy"] == 1.0
        assert t.extra["eval_rows"] == 41


def seq2seq() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return T5ForConditionalGeneration(
            T5Config(
                vocab_size=128,
                d_model=16,
                d_kv=8,
                d_ff=32,
                num_layers=1,
                num_heads=2,
                dropout_rate=0.0,
                decoder_start_token_id=0,
                pad_token_id=0,
                eos_token_id=1,
            )
        )


@pytest.mark.parametrize("ranks", [1, 2])
def test_generation_by_a_seq2seq_trainer(tmp_path: Path, ranks: int) -> None:
    from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

    def after(trainer: Any) -> tuple[list[int], int, float]:
        output = trainer.predict(sentences(MORE), max_length=6)
        return list(output.predictions.shape), len(output.label_ids), output.metrics["test_loss"]

    told = train(
        tmp_path,
        ranks,
        trainer=Seq2SeqTrainer,
        arguments=Seq2SeqTrainingArguments,
        model=seq2seq,
        max_steps=4,
        predict_with_generate=True,
        after=after,
    )
    for t in told:
        shape, labels, loss = t.extra
        # Seq2SeqTrainer.predict gathers without taking repeated samples off: a whole number of steps of all ranks.
        assert shape[0] == labels == (MORE if ranks == 1 else 16)
        assert loss < 5.5
    assert len({t.extra[2] for t in told}) == 1
