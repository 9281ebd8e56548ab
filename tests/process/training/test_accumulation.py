"""Windows of accumulation: whose they are, how long they are, and what their gradients are divided by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from accelerate import Accelerator
from accelerate.errors import StateError
from accelerate.test_utils.world import run_world
from accelerate.utils import GradientAccumulationPlugin

VOCAB, DIM = 11, 6


def model_of(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB))


def sentences() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Eight sentences of 1 to 8 real tokens, padded; labels of padding are -100."""
    generator = torch.Generator().manual_seed(3)
    rows = []
    for length in (1, 8, 2, 7, 3, 5, 4, 6):
        ids = torch.randint(0, VOCAB, (8,), generator=generator)
        labels = torch.randint(0, VOCAB, (8,), generator=generator)
        labels[length:] = -100
        rows.append((ids, labels))
    return rows


def mean_loss(model: nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), labels.flatten())


def gradient(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.detach().clone() for p in model.parameters() if p.grad is not None]


def one_big_batch() -> list[torch.Tensor]:
    rows = sentences()
    model = model_of()
    mean_loss(model, torch.stack([r[0] for r in rows]), torch.stack([r[1] for r in rows])).backward()
    return gradient(model)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("where", ["backward", "accumulate"])
def test_counted_tokens_give_the_gradient_of_one_big_batch(ranks: int, where: str) -> None:
    steps = 8 // ranks

    def rank_main(rank: int, n: int) -> list[torch.Tensor]:
        accelerator = Accelerator(gradient_accumulation_steps=steps)
        model = accelerator.prepare(model_of())
        optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.0))
        for ids, labels in sentences()[rank::n]:
            count = int((labels != -100).sum())
            on_accumulate = {"num_items": count} if where == "accumulate" else {}
            on_backward = {"num_items": count} if where == "backward" else {}
            with accelerator.accumulate(model, **on_accumulate):
                accelerator.backward(mean_loss(model, ids[None], labels[None]), **on_backward)
                optimizer.step()
        return gradient(model)

    for found in run_world(rank_main, ranks, how="fork"):
        for a, b in zip(found, one_big_batch(), strict=True):
            assert torch.allclose(a, b, atol=1e-6, rtol=0)


def test_without_counts_it_is_the_mean_of_means() -> None:
    def rank_main(rank: int, n: int) -> list[torch.Tensor]:
        accelerator = Accelerator(gradient_accumulation_steps=4)
        model = accelerator.prepare(model_of())
        for ids, labels in sentences()[rank::n]:
            with accelerator.accumulate(model):
                accelerator.backward(mean_loss(model, ids[None], labels[None]))
        return gradient(model)

    model = model_of()
    for ids, labels in sentences():
        (mean_loss(model, ids[None], labels[None]) / 8).backward()
    for found in run_world(rank_main, 2, how="fork"):
        for a, b in zip(found, gradient(model), strict=True):
            assert torch.allclose(a, b, atol=1e-6)


def test_a_rank_without_any_token_takes_part_with_nothing() -> None:
    def rank_main(rank: int, n: int) -> list[torch.Tensor]:
        accelerator = Accelerator()
        model = accelerator.prepare(model_of())
        optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.0))
        ids, labels = sentences()[1]
        if rank == 1:
            labels = torch.full_like(labels, -100)
        accelerator.backward(mean_loss(model, ids[None], labels[None]), num_items=int((labels != -100).sum()))
        optimizer.step()
        return gradient(model)

    model = model_of()
    ids, labels = sentences()[1]
    mean_loss(model, ids[None], labels[None]).backward()
    for found in run_world(rank_main, 2, how="fork"):
        for a, b in zip(found, gradient(model), strict=True):
            assert torch.allclose(a, b, atol=1e-6)


def test_counts_for_some_micro_batches_only_are_refused(fresh_state: None) -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = accelerator.prepare(nn.Linear(2, 1))
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.ones(1, 2)).mean(), num_items=3)
    with accelerator.accumulate(model), pytest.raises(StateError, match="num_items"):
        accelerator.backward(model(torch.ones(1, 2)).mean())


class Stream(IterableDataset):
    """Seven rows, without a length."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(7, dtype=torch.float32)[:, None] + 1)


@pytest.mark.parametrize("streamed", [False, True], ids=["known-length", "unknown-length"])
def test_the_last_window_of_an_epoch_is_divided_by_its_own_length(fresh_state: None, streamed: bool) -> None:
    accelerator = Accelerator(gradient_accumulation_steps=3)
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    data: Any = Stream() if streamed else TensorDataset(torch.arange(7, dtype=torch.float32)[:, None] + 1)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.0), DataLoader(data, batch_size=1)
    )
    seen = []
    for batch in loader:
        x = batch if streamed else batch[0]
        with accelerator.accumulate(model):
            accelerator.backward(model(x).sum())
            optimizer.step()
            if accelerator.sync_gradients:
                seen.append(model.weight.grad.item())
            optimizer.zero_grad()
    assert seen == pytest.approx([2.0, 5.0, 7.0]), "means over rows 1-3, 4-6 and 7 alone"


def test_two_models_have_windows_of_their_own(fresh_state: None) -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    first, second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    a, b = torch.optim.SGD(first.parameters(), lr=1.0), torch.optim.SGD(second.parameters(), lr=1.0)
    first, second, a, b = accelerator.prepare(first, second, a, b)
    moved: dict[str, list[bool]] = {"first": [], "second": []}
    for _ in range(4):
        for name, model, optimizer in (("first", first, a), ("second", second, b)):
            before = model.weight.item()
            with accelerator.accumulate(model):
                accelerator.backward(model(torch.ones(1, 1)).sum())
                optimizer.step()
                optimizer.zero_grad()
            moved[name].append(model.weight.item() != before)
    assert moved == {"first": [False, True, False, True], "second": [False, True, False, True]}


def test_models_that_train_at_different_rates_step_when_their_own_window_closes(fresh_state: None) -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    critic, maker = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    a, b = torch.optim.SGD(critic.parameters(), lr=1.0), torch.optim.SGD(maker.parameters(), lr=1.0)
    critic, maker, a, b = accelerator.prepare(critic, maker, a, b)
    steps = {"critic": 0, "maker": 0}
    for _ in range(4):
        for _ in range(3):
            with accelerator.accumulate(critic):
                accelerator.backward(critic(torch.ones(1, 1)).sum())
        with accelerator.accumulate(maker):
            accelerator.backward(maker(torch.ones(1, 1)).sum())
        for name, model, optimizer in (("critic", critic, a), ("maker", maker, b)):
            before = model.weight.item()
            optimizer.step()
            optimizer.zero_grad()
            steps[name] += model.weight.item() != before
    assert steps == {"critic": 2, "maker": 2}


def test_an_evaluation_inside_a_window_changes_nothing(fresh_state: None) -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = nn.Linear(1, 1, bias=False)
    rows = TensorDataset(torch.arange(5, dtype=torch.float32)[:, None])
    model, optimizer, train, test = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.0), DataLoader(rows), DataLoader(rows, batch_size=2)
    )
    closed, counted = [], []
    for (x,) in train:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).sum())
            closed.append(accelerator.sync_gradients)
            optimizer.step()
            optimizer.zero_grad()
        counted.append(sum(len(accelerator.gather_for_metrics(y)) for (y,) in test))
    assert closed == [False, True, False, True, True]
    assert counted == [5] * 5


def test_leaving_a_loader_early_leaves_no_trace(fresh_state: None) -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = nn.Linear(1, 1, bias=False)
    rows = TensorDataset(torch.arange(4, dtype=torch.float32)[:, None])
    model, train, test = accelerator.prepare(model, DataLoader(rows), DataLoader(rows))
    closed = []
    for index, (x,) in enumerate(train):
        for _ in test:
            break
        with accelerator.accumulate(model):
            accelerator.backward(model(x).sum())
            closed.append(accelerator.sync_gradients)
        if index == 2:
            break
    assert closed == [False, True, False]
    assert accelerator.gradient_state.active_dataloader is None
    iterator = iter(train)
    next(iterator)
    assert not accelerator.gradient_state.end_of_dataloader
    for _ in range(3):
        next(iterator)
    assert accelerator.gradient_state.end_of_dataloader
    with pytest.raises(StopIteration):
        next(iterator)
    assert accelerator.gradient_state.active_dataloader is None


def test_clipping_waits_for_the_window_and_clips_the_whole_gradient() -> None:
    def rank_main(rank: int, n: int) -> Any:
        accelerator = Accelerator(gradient_accumulation_steps=2)
        model = nn.Linear(3, 1, bias=False)
        nn.init.zeros_(model.weight)
        model = accelerator.prepare(model)
        rows = [torch.full((1, 3), 10.0 * (rank + 1)), torch.full((1, 3), 30.0)]
        between, norm = None, None
        for row in rows:
            with accelerator.accumulate(model):
                accelerator.backward(model(row).sum())
                norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
                if not accelerator.sync_gradients:
                    between = accelerator.unwrap_model(model).weight.grad.clone()
        return between, float(norm), accelerator.unwrap_model(model).weight.grad.norm().item()

    for rank, (between, norm, after) in enumerate(run_world(rank_main, 2, how="fork")):
        assert torch.equal(between, torch.full((1, 3), 5.0 * (rank + 1))), "not clipped, not reduced"
        assert norm == pytest.approx((15 / 2 + 30 / 2) * 3**0.5), "of the mean over ranks, the whole window"
        assert after == pytest.approx(1.0, rel=1e-4)


def test_windows_go_on_over_epochs_where_asked(fresh_state: None) -> None:
    plugin = GradientAccumulationPlugin(num_steps=2, sync_with_dataloader=False)
    accelerator = Accelerator(gradient_accumulation_plugin=plugin)
    model = nn.Linear(1, 1, bias=False)
    model, loader = accelerator.prepare(model, DataLoader(TensorDataset(torch.ones(3, 1))))
    closed = []
    for _ in range(2):
        for (x,) in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(x).sum())
                closed.append(accelerator.sync_gradients)
    assert closed == [False, True, False, True, False, True]


@pytest.mark.parametrize("ranks", [1, 2])
def test_counts_may_be_weights(ranks: int) -> None:
    weights = [1.5, 0.25]

    def rank_main(rank: int, n: int) -> list[torch.Tensor]:
        accelerator = Accelerator(gradient_accumulation_steps=2 // n)
        model = accelerator.prepare(model_of())
        optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.0))
        for row in range(rank, 2, n):
            ids, labels = sentences()[row]
            with accelerator.accumulate(model):
                accelerator.backward(mean_loss(model, ids[None], labels[None]), num_items=weights[row])
                optimizer.step()
        return gradient(model)

    model = model_of()
    for (ids, labels), weight in zip(sentences(), weights, strict=False):
        (mean_loss(model, ids[None], labels[None]) * weight / sum(weights)).backward()
    for found in run_world(rank_main, ranks, how="fork"):
        for a, b in zip(found, gradient(model), strict=True):
            assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize(("items", "error"), [("4", TypeError), (-1, ValueError), (float("nan"), ValueError)])
def test_a_count_that_is_none(fresh_state: None, items: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="num_items="):
        Accelerator().backward(torch.ones((), requires_grad=True), num_items=items)
