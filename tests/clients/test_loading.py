"""``from_pretrained`` of transformers with a device map, which this package works out, and dispatches by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from accelerate import dispatch_model, infer_auto_device_map, init_empty_weights
from accelerate.utils import find_tied_parameters, get_balanced_memory
from clients.jobs import assert_as_plain, llama, sentences, train

WORDS = torch.arange(12).view(2, 6)


def answer(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=WORDS).logits  # type: ignore[no-any-return]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    llama().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("device_map", ["auto", "balanced", "sequential", "cpu", {"": "cpu"}], ids=str)
def test_to_one_device(saved: Path, device_map: Any) -> None:
    model = LlamaForCausalLM.from_pretrained(saved, device_map=device_map)
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert torch.equal(answer(model), answer(llama()))


def test_a_part_stays_on_disk(saved: Path, tmp_path: Path) -> None:
    parts = {
        "model.embed_tokens": "cpu",
        "model.layers.0": "cpu",
        "model.layers.1": "disk",
        "model.norm": "disk",
        "model.rotary_emb": "cpu",
        "lm_head": "cpu",
    }
    model = LlamaForCausalLM.from_pretrained(saved, device_map=parts, offload_folder=tmp_path / "offload")
    assert model.hf_device_map == parts
    assert model.model.layers[1].mlp.up_proj.weight.device.type == "meta"
    assert torch.equal(answer(model), answer(llama()))
    assert torch.equal(answer(model), answer(llama()))  # and again, after the weights went
    assert model.model.layers[1].mlp.up_proj.weight.device.type == "meta"


def test_weights_that_are_one(tmp_path: Path) -> None:
    llama(tie_word_embeddings=True).save_pretrained(tmp_path)
    model = LlamaForCausalLM.from_pretrained(tmp_path, device_map="auto")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert [sorted(group) for group in find_tied_parameters(model)] == [["lm_head.weight", "model.embed_tokens.weight"]]


def test_an_empty_model_is_measured_and_filled(saved: Path) -> None:
    with init_empty_weights():
        empty = LlamaForCausalLM(LlamaConfig.from_pretrained(saved))
    assert all(p.is_meta for p in empty.parameters())
    memory = get_balanced_memory(empty, {"cpu": "1GiB"}, no_split_module_classes=["LlamaDecoderLayer"])
    assert memory["cpu"] == 2**30 or memory["cpu"] == "1GiB"
    placed = infer_auto_device_map(empty, memory, no_split_module_classes=["LlamaDecoderLayer"])
    assert placed == {"": "cpu"}
    # Two blocks and no more fit: what comes after them goes to disk, and a block is never cut.
    block = 4 * sum(p.numel() for p in empty.model.layers[0].parameters())
    rest = 4 * empty.model.embed_tokens.weight.numel()
    few = infer_auto_device_map(empty, {"cpu": rest + 2 * block}, no_split_module_classes=["LlamaDecoderLayer"])
    assert few["model.embed_tokens"] == "cpu" and few["lm_head"] == "disk"
    assert {name.count(".") for name in few if name.startswith("model.layers.")} <= {2}
    model = dispatch_model(llama(), {"": "cpu"})
    assert model.hf_device_map == {"": "cpu"}
    assert torch.equal(answer(model), answer(llama()))


def test_what_was_dispatched_is_trained(saved: Path, tmp_path: Path) -> None:
    def model() -> Any:
        return LlamaForCausalLM.from_pretrained(saved, device_map={"": "cpu"})

    told = train(tmp_path, 1, model=model, data=sentences(), after=lambda trainer: str(trainer.model.device))
    assert [t.extra for t in told] == ["cpu"]
    assert_as_plain(told)
