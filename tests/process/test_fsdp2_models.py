"""FSDP version 2 where ranks must be processes: random numbers, memory, compilation, real libraries' models."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch

from accelerate.test_utils.world import run_world
from accelerate.utils import TorchDynamoPlugin
from memory import growth
from sharded_jobs import (
    Block,
    Job,
    Net,
    Result,
    accelerator,
    assert_same,
    fresh,
    plain,
    plugin,
    prepare_together,
    run,
    train,
)


class Bare(Net):
    """Every module makes its own weights."""

    def __init__(self) -> None:
        super().__init__()
        del self.shift

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.mark.parametrize("n", [2, 4])
def test_a_model_on_the_meta_device_is_made_as_its_constructor_would(n: int) -> None:
    torch.manual_seed(5)
    job = Job(Bare())
    with torch.device("meta"):
        empty = Bare()

    def build(rank: int) -> torch.nn.Module:
        torch.manual_seed(5 + 100 * rank)  # the first rank's random numbers count
        return copy.deepcopy(empty)

    wanted = plain(job)
    for result in run_world(run(job, plugin, build=build), n, how="fork"):
        assert_same(result, wanted)


def test_an_init_function_of_the_users_own() -> None:
    def constant(module: torch.nn.Module) -> None:
        module.to_empty(device="cpu", recurse=False)
        with torch.no_grad():
            for parameter in module.parameters(recurse=False):
                parameter.fill_(0.25)

    def rank_main(rank: int, n: int) -> set[float]:
        with torch.device("meta"):
            model = Bare()
        acc = accelerator(Job(model), plugin(param_init_fn=constant))
        model = acc.prepare(model)
        return {float(value) for p in model.parameters() for value in p.full_tensor().detach().unique()}

    assert run_world(rank_main, 2, how="fork") == [{0.25}, {0.25}]


def test_ranks_that_wait_for_weights_hold_their_part_only() -> None:
    """Peak memory of a rank that does not load: its shards and at most a tenth more."""
    width, layers = 1024, 100  # a unit in passing is a small part of what a rank keeps
    whole = layers * (width * width + width) * 4

    def rank_main(rank: int, n: int) -> int:
        def build() -> torch.nn.Module:
            return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))

        if rank:
            with torch.device("meta"):
                model = build()
        else:
            model = build()
        settings = {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": width * width}
        acc = accelerator(Job(model), plugin(cpu_ram_efficient_loading=True, **settings))
        # A first collective, so that buffers of the communication are not counted.
        acc.wait_for_everyone()
        torch.distributed.scatter(
            torch.empty(width, width), [torch.ones(width, width)] * n if rank == 0 else None, src=0
        )
        with growth() as grown:
            model = acc.prepare(model)
        assert all(bool(p.to_local().abs().sum() > 0) for p in model.parameters() if p.ndim > 1)
        return grown.bytes

    grown = run_world(rank_main, 4, how="fork")
    for rank in (1, 2, 3):
        assert grown[rank] <= whole / 4 * 1.1, f"rank {rank} grew by {grown[rank] / (whole / 4):.2f} of its part"


def test_compiled_by_region() -> None:
    def rank_main(rank: int, n: int) -> tuple[Result, list[str]]:
        warnings.simplefilter("ignore")  # dynamo's own, of what it looks at
        dynamo = TorchDynamoPlugin(backend="aot_eager", use_regional_compilation=True)
        acc = accelerator(job, plugin(), dynamo_plugin=dynamo)
        model, optimizer = prepare_together(acc, job, copy.deepcopy(job.model))
        result = train(acc, job, model, optimizer)
        compiled = [n for n, m in model.named_modules() if getattr(m, "_compiled_call_impl", None) is not None]
        return result, compiled

    job = Job(fresh(), steps=6)
    for result, compiled in run_world(rank_main, 2, how="fork", timeout=120):
        assert_same(result, plain(job))
        assert compiled == ["blocks.0", "blocks.1"]


def test_compiled_whole_keeps_clean_names() -> None:
    def rank_main(rank: int, n: int) -> Result:
        warnings.simplefilter("ignore")
        acc = accelerator(job, plugin(), dynamo_plugin=TorchDynamoPlugin(backend="eager"))
        model, optimizer = prepare_together(acc, job, copy.deepcopy(job.model))
        return train(acc, job, model, optimizer)

    job = Job(fresh(), steps=4)
    for result in run_world(rank_main, 2, how="fork", timeout=120):
        assert_same(result, plain(job))


def _llama(**settings: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
        **settings,
    )
    return LlamaForCausalLM(config)


def _losses(model: Any, optimizer: Any, backward: Any, part: Any = lambda x: x, steps: int = 10) -> list[float]:
    generator, losses = torch.Generator().manual_seed(1), []
    for _ in range(steps):
        tokens = part(torch.randint(0, 64, (4, 8), generator=generator))
        loss = model(input_ids=tokens, labels=tokens).loss
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def _mean(losses: list[Any]) -> list[float]:
    stacked = torch.stack(losses)
    torch.distributed.all_reduce(stacked)
    return (stacked / torch.distributed.get_world_size()).tolist()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("version", [1, 2])
def test_a_transformers_model_is_cut_by_the_layers_it_names(version: int, tied: bool) -> None:
    def rank_main(rank: int, n: int) -> tuple[list[float], list[str]]:
        model = _llama(tie_word_embeddings=tied)
        acc = accelerator(Job(model), plugin(version))
        model, optimizer = acc.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
        losses = _losses(model, optimizer, acc.backward, lambda x: x.chunk(n)[rank])
        units = {
            m for m in model.modules() if type(m).__name__ in ("FSDPLlamaDecoderLayer", "FullyShardedDataParallel")
        }
        return _mean(losses), len(units)

    alone = _llama(tie_word_embeddings=tied)
    wanted = _losses(alone, torch.optim.SGD(alone.parameters(), lr=0.5), lambda loss: loss.backward())
    for losses, units in run_world(rank_main, 2, how="fork"):
        assert losses == pytest.approx([float(loss) for loss in wanted], rel=1e-5)
        assert units == (3 if version == 1 else 2)


@pytest.mark.parametrize("version", [1, 2])
def test_adapters_on_a_frozen_model(version: int) -> None:
    import peft

    def adapted() -> Any:
        model = _llama()
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        torch.manual_seed(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # transformers' own, of what peft asks it
            return peft.get_peft_model(model, config)

    def rank_main(rank: int, n: int) -> Any:
        model = adapted()
        frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
        acc = accelerator(Job(model), plugin(version))
        trained = [p for p in model.parameters() if p.requires_grad]
        model, optimizer = acc.prepare(model, torch.optim.SGD(trained, lr=0.5))
        before = acc.strategy.state().full_state_dict(model)
        before = {name: tensor.clone() for name, tensor in before.items()}
        losses = _mean(_losses(model, optimizer, acc.backward, lambda x: x.chunk(n)[rank]))
        after = acc.strategy.state().full_state_dict(model)
        moved = {name for name in after if not torch.equal(after[name], before[name])}
        return losses, moved, frozen

    alone = adapted()
    trained = [p for p in alone.parameters() if p.requires_grad]
    wanted = _losses(alone, torch.optim.SGD(trained, lr=0.5), lambda loss: loss.backward())
    results = run_world(rank_main, 2, how="fork")
    for losses, _, _ in results:
        assert losses == pytest.approx([float(loss) for loss in wanted], rel=1e-5)
    _, moved, frozen = results[0]
    assert moved == {name for name, p in alone.named_parameters() if p.requires_grad}
    assert not moved & frozen


def test_units_are_found_behind_checkpoints_and_compilers() -> None:
    def rank_main(rank: int, n: int) -> list[str]:
        warnings.simplefilter("ignore")
        dynamo = TorchDynamoPlugin(backend="aot_eager", use_regional_compilation=True)
        acc = accelerator(job, plugin(activation_checkpointing=True), dynamo_plugin=dynamo)
        model, optimizer = prepare_together(acc, job, copy.deepcopy(job.model))
        assert_same(train(acc, job, model, optimizer), plain(job))
        from torch.distributed.fsdp import FSDPModule

        return [f"{n}:{isinstance(m, Block)}" for n, m in model.named_modules() if isinstance(m, FSDPModule)]

    job = Job(fresh(), steps=3)
    assert run_world(rank_main, 2, how="fork", timeout=120)[0] == [":False", "blocks.0:False", "blocks.1:False"]
