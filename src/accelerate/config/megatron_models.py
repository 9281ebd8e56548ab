"""Megatron's arguments read off transformers models, one reader a model type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelerate.errors import ConfigError

__all__ = ["add_model_config_to_megatron_parser", "network_arguments"]

Reader = Callable[[Any, Any, Any], "dict[str, Any] | None"]
_readers: dict[str, Reader] = {}


def add_model_config_to_megatron_parser(model_type: str) -> Callable[[Reader], Reader]:
    """A decorator that registers the reader of a model type.

    The function is called with (plugin, model, batch) and gives a dictionary of Megatron's arguments, or writes them
    into ``plugin.megatron_lm_default_args`` itself and gives None.
    """

    def register(reader: Reader) -> Reader:
        _readers[model_type] = reader
        return reader

    return register


def network_arguments(plugin: Any, model: Any, batch: Any) -> dict[str, Any]:
    """Megatron's arguments for ``model``.

    Raises:
        ConfigError: no reader is registered for its type.
    """
    kind = str(getattr(model.config, "model_type", "")).lower()
    for name, reader in _readers.items():
        if name in kind:
            return reader(plugin, model, batch) or {}
    raise ConfigError(
        f"Model type {kind!r} has no reader of its sizes for Megatron-LM; there are some for {', '.join(_readers)}. "
        "Register one with add_model_config_to_megatron_parser."
    )


def _first(batch: Any, *keys: str) -> Any:
    if isinstance(batch, dict):
        for key in keys:
            if key in batch:
                return batch[key]
    return None


def _length(plugin: Any, batch: Any, longest: int) -> int:
    """The sequence length: the plugin's, else the decoder's, else the batch's, else the longest that the model has."""
    for value in (plugin.seq_length, plugin.encoder_seq_length, plugin.decoder_seq_length):
        if value is not None:
            return int(value)
    tokens = _first(batch, "input_ids", "text")
    return int(tokens.shape[1]) if tokens is not None else longest


def _common(model: Any, name: str, layers: int, hidden: int, heads: int, positions: int) -> dict[str, Any]:
    return {
        "model_type_name": name,
        "num_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "max_position_embeddings": positions,
        "orig_vocab_size": model.config.vocab_size,
        "model_return_dict": bool(getattr(model.config, "return_dict", True)),
    }


@add_model_config_to_megatron_parser("bert")
def read_bert(plugin: Any, model: Any, batch: Any) -> dict[str, Any]:
    """Encoders of BERT's kind."""
    config = model.config
    found = _common(
        model,
        "bert",
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.max_position_embeddings,
    )
    found["seq_length"] = _length(plugin, batch, config.max_position_embeddings)
    found["num_labels"] = config.num_labels
    found["pretraining_flag"] = "forpretraining" in type(model).__name__.lower()
    found["bert_binary_head"] = found["pretraining_flag"]
    return found


@add_model_config_to_megatron_parser("gpt2")
def read_gpt2(plugin: Any, model: Any, batch: Any) -> dict[str, Any]:
    """Decoders of GPT-2's kind."""
    config = model.config
    found = _common(model, "gpt", config.n_layer, config.n_embd, config.n_head, config.n_positions)
    found["seq_length"] = _length(plugin, batch, config.n_positions)
    found["pretraining_flag"] = True
    found["return_logits"] = plugin.return_logits
    found["tokenizer_type"] = "GPT2BPETokenizer"
    return found


@add_model_config_to_megatron_parser("llama")
def read_llama(plugin: Any, model: Any, batch: Any) -> dict[str, Any]:
    """Decoders of Llama's kind."""
    config = model.config
    found = _common(
        model,
        "gpt",
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.max_position_embeddings,
    )
    found["seq_length"] = _length(plugin, batch, config.max_position_embeddings)
    found["ffn_hidden_size"] = config.intermediate_size
    found["group_query_attention"] = config.num_key_value_heads != config.num_attention_heads
    found["num_query_groups"] = config.num_key_value_heads
    found["use_rotary_position_embeddings"] = True
    found["normalization"] = "RMSNorm"
    found["norm_epsilon"] = config.rms_norm_eps
    found["swiglu"] = True
    found["untie_embeddings_and_output_weights"] = not config.tie_word_embeddings
    found["pretraining_flag"] = True
    found["return_logits"] = plugin.return_logits
    found["tokenizer_type"] = "Llama2Tokenizer"
    return found


@add_model_config_to_megatron_parser("t5")
def read_t5(plugin: Any, model: Any, batch: Any) -> dict[str, Any]:
    """Encoder-decoders of T5's kind."""
    config = model.config
    positions = getattr(config, "n_positions", 512)
    found = _common(model, "t5", config.num_layers, config.d_model, config.num_heads, positions)
    found["encoder_seq_length"] = plugin.encoder_seq_length or _length(plugin, batch, positions)
    labels = _first(batch, "labels")
    found["decoder_seq_length"] = plugin.decoder_seq_length or (
        int(labels.shape[1]) if labels is not None else found["encoder_seq_length"]
    )
    found["seq_length"] = found["encoder_seq_length"]
    found["pretraining_flag"] = True
    return found
