"""Megatron-LM's arguments from the plugin, the launch, a model and an optimizer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accelerate.config import megatron_models
from accelerate.config.megatron import MegatronLMPlugin, add_model_config_to_megatron_parser
from accelerate.errors import ConfigError


def test_from_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "TP_DEGREE": "2",
        "PP_DEGREE": "4",
        "SEQUENCE_PARALLELISM": "true",
        "GRADIENT_CLIPPING": "0.5",
    }.items():
        monkeypatch.setenv(f"MEGATRON_LM_{name}", value)
    plugin = MegatronLMPlugin(num_micro_batches=3)
    assert (plugin.tp_degree, plugin.pp_degree, plugin.sequence_parallelism) == (2, 4, True)
    found = plugin.megatron_lm_default_args
    assert (found["tensor_model_parallel_size"], found["pipeline_model_parallel_size"]) == (2, 4)
    assert (found["sequence_parallel"], found["clip_grad"], found["num_micro_batches"]) == (True, 0.5, 3)


def test_further_arguments_go_last() -> None:
    plugin = MegatronLMPlugin(
        tensorboard_dir="logs", set_all_logging_options=True, other_megatron_args={"clip_grad": 9}
    )
    found = plugin.megatron_lm_default_args
    assert (found["clip_grad"], found["tensorboard_dir"], found["log_params_norm"]) == (9, "logs", True)


def test_recomputation_in_its_short_form() -> None:
    assert MegatronLMPlugin(recompute_activations=True).megatron_lm_default_args["recompute_granularity"] == "selective"


def test_degrees_are_at_least_1() -> None:
    with pytest.raises(ConfigError, match="tp_degree=0 has to be at least 1"):
        MegatronLMPlugin(tp_degree=0)


def test_training_sizes_and_precision() -> None:
    plugin = MegatronLMPlugin(num_micro_batches=4)
    plugin.set_training_args(2, 3)
    assert plugin.megatron_lm_default_args["global_batch_size"] == 24
    plugin.set_mixed_precision("bf16")
    assert plugin.megatron_lm_default_args["bf16"] is True


def test_optimizers() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(1))]
    plugin = MegatronLMPlugin()
    plugin.set_optimizer_type(torch.optim.AdamW(parameters, lr=0.1, betas=(0.8, 0.9), eps=1e-7, weight_decay=0.3))
    found = plugin.megatron_lm_default_args
    assert (found["optimizer"], found["lr"], found["adam_beta1"], found["adam_beta2"]) == ("adam", 0.1, 0.8, 0.9)
    assert (found["adam_eps"], found["weight_decay"]) == (1e-7, 0.3)
    plugin.set_optimizer_type(torch.optim.SGD(parameters, lr=0.2, momentum=0.9))
    assert (found["optimizer"], found["sgd_momentum"]) == ("sgd", 0.9)
    with pytest.raises(ConfigError, match="Adam and SGD, but Rprop was given"):
        plugin.set_optimizer_type(torch.optim.Rprop(parameters))


def test_schedulers() -> None:
    plugin = MegatronLMPlugin()
    plugin.set_training_args(2, 2)
    plugin.set_scheduler_args(SimpleNamespace(total_num_steps=100, warmup_num_steps=10))
    found = plugin.megatron_lm_default_args
    assert (found["train_iters"], found["lr_warmup_iters"], found["lr_decay_style"]) == (50, 5, "linear")
    with pytest.raises(ConfigError, match="set total_num_steps"):
        MegatronLMPlugin().set_scheduler_args(SimpleNamespace(total_num_steps=None, warmup_num_steps=0))


def _model(**config: Any) -> Any:
    return SimpleNamespace(config=SimpleNamespace(vocab_size=99, **config))


def test_sizes_of_models() -> None:
    plugin = MegatronLMPlugin()
    plugin.set_network_size_args(
        _model(
            model_type="llama",
            num_hidden_layers=2,
            hidden_size=16,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            intermediate_size=32,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
        ),
        {"input_ids": torch.zeros(2, 8)},
    )
    found = plugin.megatron_lm_default_args
    assert (found["num_layers"], found["hidden_size"], found["seq_length"]) == (2, 16, 8)
    assert (found["group_query_attention"], found["num_query_groups"]) == (True, 2)
    gpt = MegatronLMPlugin(seq_length=12)
    gpt.set_network_size_args(_model(model_type="gpt2", n_layer=1, n_embd=8, n_head=2, n_positions=32))
    assert (gpt.megatron_lm_default_args["seq_length"], gpt.megatron_lm_default_args["orig_vocab_size"]) == (12, 99)
    bert = MegatronLMPlugin()
    sizes = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "max_position_embeddings": 16}
    bert.set_network_size_args(_model(model_type="bert", num_labels=3, **sizes))
    assert bert.megatron_lm_default_args["num_labels"] == 3
    t5 = MegatronLMPlugin(decoder_seq_length=5)
    t5.set_network_size_args(_model(model_type="t5", num_layers=1, d_model=8, num_heads=2, n_positions=16))
    assert t5.megatron_lm_default_args["encoder_seq_length"] == 5
    assert t5.megatron_lm_default_args["decoder_seq_length"] == 5


def test_a_reader_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(megatron_models, "_readers", dict(megatron_models._readers))
    with pytest.raises(ConfigError, match="'mamba' has no reader"):
        MegatronLMPlugin().set_network_size_args(_model(model_type="mamba"))

    @add_model_config_to_megatron_parser("mamba")
    def read(plugin: Any, model: Any, batch: Any) -> None:
        plugin.megatron_lm_default_args["num_layers"] = model.config.depth

    plugin = MegatronLMPlugin()
    plugin.set_network_size_args(_model(model_type="mamba", depth=7))
    assert plugin.megatron_lm_default_args["num_layers"] == 7
