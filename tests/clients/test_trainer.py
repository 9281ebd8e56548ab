"""transformers' Trainer, unmodified, trains as plain PyTorch does on the same sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from accelerate import Accelerator, PartialState
from accelerate.data.sampler import SeedableRandomSampler
from clients.jobs import FIVE, Told, assert_as_plain, sentences, together, train, world
from clients.jobs import Job as TrainerJob

RANKS = [1, 2, 4]
KINDS = {1: "NO", 2: "MULTI_CPU", 4: "MULTI_CPU"}


def same_on_every_rank(told: list[Told]) -> None:
    assert all(t.losses == told[0].losses for t in told)


@pytest.mark.parametrize("ranks", RANKS)
def test_trains(tmp_path: Path, ranks: int) -> None:
    told = train(tmp_path, ranks)
    assert_as_plain(told)
    same_on_every_rank(told)
    assert all(t.kind == KINDS[ranks] for t in told)
    assert told[0].wrapped == ("LlamaForCausalLM" if ranks == 1 else "DistributedDataParallel")


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_epoch_shows_every_sentence_once(tmp_path: Path, ranks: int) -> None:
    told = train(tmp_path, ranks, max_steps=-1, num_train_epochs=2)
    steps = together(told)
    half = len(steps) // 2
    first, second = sum(steps[:half], []), sum(steps[half:], [])
    assert sorted(first) == sorted(second) == list(range(48))
    assert first != second != list(range(48))
    assert_as_plain(told)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("together_counted", [True, False])
def test_accumulates(tmp_path: Path, ranks: int, together_counted: bool) -> None:
    """Windows of three, the last of an epoch shorter, sentences of different lengths."""
    data = sentences(22, ragged=True)
    told = train(
        tmp_path,
        ranks,
        data=data,
        gradient_accumulation_steps=3,
        average_tokens_across_devices=together_counted,
        max_steps=-1,
        num_train_epochs=3,
    )
    batches = {1: [3, 3, 3, 2], 2: [3, 3]}[ranks] * 3
    assert [len(step) for step in told[0].steps] == [2 * count for count in batches]
    if together_counted or ranks == 1:
        assert_as_plain(told, data=data)
    else:
        with pytest.raises(AssertionError):
            assert_as_plain(told, data=data)  # each rank divides by its own count of words


def test_batches_that_are_split(tmp_path: Path) -> None:
    told = train(tmp_path, 2, per_device_train_batch_size=4, accelerator_config={"split_batches": True})
    assert [len(step) for step in together(told)] == [4] * 10
    assert_as_plain(told)


@pytest.mark.parametrize("dispatch", [True, False])
def test_batches_that_rank_0_reads(tmp_path: Path, dispatch: bool) -> None:
    told = train(tmp_path, 2, accelerator_config={"dispatch_batches": dispatch})
    assert [len(step) for step in together(told)] == [4] * 10
    assert_as_plain(told)


@pytest.mark.parametrize("even", [True, False])
def test_a_last_batch_that_is_uneven(tmp_path: Path, even: bool) -> None:
    data = sentences(15)
    told = train(tmp_path, 2, data=data, max_steps=-1, num_train_epochs=2, accelerator_config={"even_batches": even})
    sizes = [len(step) for step in together(told)]
    assert sizes == [4, 4, 4, 4 if even else 3] * 2
    assert set(sum(together(told)[:4], [])) == set(range(15))
    assert_as_plain(told, data=data)


@pytest.mark.parametrize("seedable", [True, False])
def test_the_sampler(tmp_path: Path, seedable: bool) -> None:
    def after(trainer: Any) -> bool:
        loader = trainer.callback_handler.train_dataloader
        sampler = loader.batch_sampler
        while hasattr(sampler, "batch_sampler"):
            sampler = sampler.batch_sampler
        return isinstance(sampler.sampler, SeedableRandomSampler)

    config = {"use_seedable_sampler": seedable}
    told = train(tmp_path, 2, after=after, data_seed=7, accelerator_config=config)
    assert all(t.extra is seedable for t in told)
    assert_as_plain(told)
    other = train(tmp_path, 2, **{"data_seed" if seedable else "seed": 8}, accelerator_config=config)
    assert together(other) != together(told)


def test_copies_that_do_not_block(tmp_path: Path) -> None:
    told = train(
        tmp_path,
        2,
        dataloader_pin_memory=True,
        accelerator_config={"non_blocking": True},
        after=lambda trainer: trainer.accelerator.non_blocking,
    )
    assert all(t.extra for t in told)
    assert_as_plain(told)


@pytest.mark.parametrize("each", [True, False])
def test_gradients_that_are_reduced_each_time(tmp_path: Path, each: bool) -> None:
    told = train(
        tmp_path,
        2,
        gradient_accumulation_steps=2,
        accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": each}},
        after=lambda trainer: trainer.accelerator.gradient_state.plugin_kwargs.get("sync_each_batch", False),
    )
    assert all(t.extra is (each and FIVE) for t in told)  # version 4 does not hand it on
    assert_as_plain(told)


def test_accumulation_from_the_accelerator_configuration(tmp_path: Path) -> None:
    told = train(tmp_path, 2, accelerator_config={"gradient_accumulation_kwargs": {"num_steps": 2}})
    assert [len(step) for step in together(told)] == [8] * 10
    assert_as_plain(told)


def test_a_configured_state(tmp_path: Path) -> None:
    told = train(
        tmp_path,
        2,
        before=PartialState,
        accelerator_config={"use_configured_state": True},
        after=lambda trainer: trainer.args.process_index,
    )
    assert [t.extra for t in told] == [0, 1]
    assert_as_plain(told)


def test_a_state_that_is_set_up_before_is_replaced(tmp_path: Path) -> None:
    told = train(tmp_path, 2, before=lambda: Accelerator(mixed_precision="bf16"))
    assert_as_plain(told)


def test_ddp_settings(tmp_path: Path) -> None:
    def after(trainer: Any) -> tuple[Any, ...]:
        ddp = trainer.model_wrapped
        return ddp.find_unused_parameters, ddp.broadcast_buffers, ddp.bucket_bytes_cap

    told = train(
        tmp_path,
        2,
        after=after,
        ddp_backend="gloo",
        ddp_find_unused_parameters=True,
        ddp_broadcast_buffers=False,
        ddp_bucket_cap_mb=3,
        ddp_timeout=90,
    )
    assert all(t.extra == (True, False, 3 << 20) for t in told)
    assert_as_plain(told)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("mode", "within"), [("bf16", 3e-2), ("fp16", 3e-2)])
def test_low_precision(tmp_path: Path, ranks: int, mode: str, within: float) -> None:
    def after(trainer: Any) -> tuple[str, bool, set[torch.dtype]]:
        acc = trainer.accelerator
        return acc.mixed_precision, acc.scaler is not None, {p.dtype for p in trainer.model.parameters()}

    told = train(tmp_path, ranks, after=after, use_cpu=True, **{mode: True})
    assert all(t.extra == (mode, mode == "fp16", {torch.float32}) for t in told)
    assert_as_plain(told, within=within)
    with pytest.raises(AssertionError):
        assert_as_plain(told, within=1e-6)


def test_precision_from_the_launch(tmp_path: Path) -> None:
    told = train(
        tmp_path,
        2,
        env={"ACCELERATE_MIXED_PRECISION": "bf16"},
        after=lambda trainer: trainer.accelerator.mixed_precision,
    )
    assert all(t.extra == "bf16" for t in told)
    assert_as_plain(told, within=3e-2)


@pytest.mark.parametrize("ranks", [1, 2])
def test_compiles(tmp_path: Path, ranks: int) -> None:
    def after(trainer: Any) -> bool:
        compiled = any(type(module).__name__ == "OptimizedModule" for module in trainer.model_wrapped.modules())
        bare = trainer.accelerator.unwrap_model(trainer.model_wrapped, keep_torch_compile=False)
        return compiled and type(bare).__name__ == "LlamaForCausalLM"

    told = train(tmp_path, ranks, after=after, torch_compile=True, torch_compile_backend="eager")
    assert all(t.extra for t in told)
    assert_as_plain(told)


def test_finds_a_batch_size(tmp_path: Path) -> None:
    """More than seven sentences do not fit."""

    def after(trainer: Any) -> int:
        return int(trainer._train_batch_size)

    from transformers import Trainer

    class Small(Trainer):
        def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            if len(inputs["input_ids"]) > 7:
                raise RuntimeError("CUDA out of memory. Tried to allocate more than there is")
            return super().training_step(model, inputs, *args, **kwargs)

    told = train(
        tmp_path, 2, trainer=Small, after=after, per_device_train_batch_size=16, max_steps=4, auto_find_batch_size=True
    )
    found = {t.extra for t in told}
    assert len(found) == 1 and found.pop() < 8
    assert_as_plain(told)


def test_on_the_cpu(tmp_path: Path) -> None:
    told = train(tmp_path, 2, use_cpu=True, after=lambda trainer: str(trainer.accelerator.device))
    assert all(t.extra == "cpu" for t in told)
    assert_as_plain(told)


class Stream(IterableDataset):
    """Sentences in order, without a length, counting what is read."""

    def __init__(self, count: int = 48) -> None:
        self.rows = sentences(count)
        self.read = 0

    def __iter__(self) -> Any:
        for row in self.rows:
            self.read += 1
            yield row


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("dispatch", [None, False])
def test_a_stream(tmp_path: Path, ranks: int, dispatch: bool | None) -> None:
    told = train(
        tmp_path,
        ranks,
        data=Stream(),
        max_steps=8,
        accelerator_config={} if dispatch is None else {"dispatch_batches": dispatch},
    )
    size = 2 * ranks
    assert [sorted(step) for step in together(told)] == [list(range(k * size, (k + 1) * size)) for k in range(8)]
    assert_as_plain(told)


def test_sentences_of_one_length_together(tmp_path: Path) -> None:
    data = sentences(48, ragged=True)
    grouped: dict[str, Any] = {"train_sampling_strategy": "group_by_length"} if FIVE else {"group_by_length": True}
    told = train(tmp_path, 2, data=data, **grouped)
    assert_as_plain(told, data=data)
    spread = [
        max(lengths) - min(lengths) for step in together(told) if (lengths := [len(data[i]["labels"]) for i in step])
    ]
    mixed = train(tmp_path, 2, data=data)
    other = [
        max(lengths) - min(lengths) for step in together(mixed) if (lengths := [len(data[i]["labels"]) for i in step])
    ]
    assert sum(spread) < sum(other) / 2


def test_trains_twice(tmp_path: Path) -> None:
    """A second ``train()`` of one trainer goes on with the weights, and wraps nothing a second time."""

    def after(trainer: Any) -> tuple[str, list[float]]:
        first = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        trainer.train()
        return type(trainer.model_wrapped.module).__name__, first

    told = train(tmp_path, 2, after=after, max_steps=5)
    for t in told:
        assert t.extra[0] == "LlamaForCausalLM"
        assert len(t.losses) == len(t.extra[1]) == 5
        assert t.losses[0] < t.extra[1][0]


def test_workers_read_ahead(tmp_path: Path) -> None:
    told = train(
        tmp_path, 2, dataloader_num_workers=1, dataloader_persistent_workers=True, max_steps=-1, num_train_epochs=2
    )
    assert sorted(sum(together(told)[:12], [])) == list(range(48))
    assert_as_plain(told)


def test_checkpointed_activations_and_no_clipping(tmp_path: Path) -> None:
    name = "activation_checkpointing" if FIVE else "gradient_checkpointing"
    told = train(tmp_path, 2, max_grad_norm=0.0, **{name: True})
    assert_as_plain(told, clip=0.0)


def test_a_loss_of_ones_own(tmp_path: Path) -> None:
    def own(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        total = torch.nn.functional.cross_entropy(
            outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"
        )
        return total / num_items_in_batch

    data = sentences(48, ragged=True)
    told = train(tmp_path, 2, data=data, gradient_accumulation_steps=2, more={"compute_loss_func": own})
    assert_as_plain(told, data=data)


def test_a_mesh_of_replicas(tmp_path: Path) -> None:
    from accelerate.parallelism_config import ParallelismConfig

    told = train(
        tmp_path,
        2,
        after=lambda trainer: trainer.accelerator.parallelism_config.dp_replicate_size,
        parallelism_config=ParallelismConfig(dp_replicate_size=2),
    )
    assert all(t.extra == 2 for t in told)
    assert_as_plain(told)


def test_a_search_makes_the_accelerator_anew(tmp_path: Path) -> None:
    """Every trial trains from the same weights on one rank, with the rate it was given."""
    from transformers import Trainer, TrainingArguments

    from clients.jobs import Recorder, collate, llama

    def search() -> tuple[int, list[float], str]:
        made: list[int] = []

        class Counting(Trainer):
            def create_accelerator_and_postprocess(self) -> None:
                super().create_accelerator_and_postprocess()
                made.append(id(self.accelerator))
                self.kept = [*getattr(self, "kept", []), self.accelerator]

        args = TrainingArguments(
            str(tmp_path), max_steps=3, logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True
        )
        trainer = Counting(
            model_init=lambda: llama(),
            args=args,
            train_dataset=sentences(),
            eval_dataset=sentences(8),
            data_collator=collate,
        )
        seen: list[float] = []

        def objective(metrics: dict[str, float]) -> float:
            seen.append(metrics["eval_loss"])
            return metrics["eval_loss"]

        best = trainer.hyperparameter_search(
            hp_space=lambda trial: {"learning_rate": trial.suggest_categorical("learning_rate", [1e-2, 1e-5])},
            compute_objective=objective,
            n_trials=4,
            backend="optuna",
            direction="minimize",
        )
        return len(set(made)), seen, str(best.hyperparameters)

    assert Recorder is not None
    accelerators, losses, best = world(search, 1)[0]
    assert accelerators == 5
    assert len({round(loss, 5) for loss in losses}) <= 2 and len(losses) == 4
    assert "0.01" in best or len({round(loss, 5) for loss in losses}) == 1


def test_arguments_are_pickled_with_their_plugins(tmp_path: Path) -> None:
    job = TrainerJob(folder=tmp_path, settings={"max_steps": 2})

    def pickled() -> list[float]:
        trainer, _ = job.build()
        torch.save(trainer.args, tmp_path / "args.bin")
        again = torch.load(tmp_path / "args.bin", weights_only=False)
        return [again.learning_rate, trainer.args.learning_rate]

    assert world(pickled, 1) == [[1e-2, 1e-2]]
