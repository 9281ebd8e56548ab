"""Megatron-LM, as code asks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from accelerate.config.filling import fill, filled
from accelerate.config.megatron_models import add_model_config_to_megatron_parser, network_arguments
from accelerate.config.sections.megatron import MegatronSection
from accelerate.errors import ConfigError

__all__ = ["MegatronLMPlugin", "add_model_config_to_megatron_parser"]

_RENAMED = {
    "tp_degree": "tensor_model_parallel_size",
    "pp_degree": "pipeline_model_parallel_size",
    "gradient_clipping": "clip_grad",
    "sequence_parallelism": "sequence_parallel",
}
"""Fields that Megatron's own arguments spell differently."""

# Fields that are ours alone, or that later calls pass on in their own way.
_KEPT = ("is_train_batch_min", "return_logits", "recompute_activations", "tensorboard_dir", "set_all_logging_options")
_LATER = ("train_", "weight_decay_", "start_", "end_", "lr_decay_", "lr_warmup_", "min_lr", "custom_", "other_")
_LENGTHS = "seq_length"


def _flag(fallback: Any = False) -> Any:
    return filled(MegatronSection, fallback=fallback)


def _passed_on(name: str) -> bool:
    return name not in _KEPT and not name.startswith(_LATER) and not name.endswith(_LENGTHS)


@dataclass
class MegatronLMPlugin:
    """What Megatron-LM is to do. Fields that are None come from the launch.

    ``megatron_lm_default_args`` holds the arguments by Megatron's names; ``other_megatron_args`` are added to them.
    """

    tp_degree: int = _flag(1)
    pp_degree: int = _flag(1)
    use_custom_fsdp: bool = _flag()
    overlap_cpu_optimizer_d2h_h2d: bool = _flag()
    no_load_optim: bool = _flag()
    eod_mask_loss: bool = _flag()
    no_save_optim: bool = _flag()
    optimizer_cpu_offload: bool = _flag()
    use_precision_aware_optimizer: bool = _flag()
    decoder_last_pipeline_num_layers: int = _flag(None)
    recompute_granularity: str = _flag(None)
    recompute_method: str = _flag(None)
    recompute_num_layers: int = _flag(None)
    attention_backend: bool = _flag(None)
    expert_model_parallel_size: int = _flag(1)
    context_parallel_size: int = _flag(1)
    attention_dropout: float = _flag(None)
    hidden_dropout: float = _flag(None)
    attention_softmax_in_fp32: bool = _flag()
    expert_tensor_parallel_size: int = _flag(1)
    calculate_per_token_loss: bool = _flag()
    use_rotary_position_embeddings: bool = _flag()
    num_micro_batches: int = _flag(1)
    gradient_clipping: float = _flag(1.0)
    sequence_parallelism: bool = _flag()
    recompute_activations: bool = _flag()
    use_distributed_optimizer: bool = _flag()
    pipeline_model_parallel_split_rank: int | None = None
    num_layers_per_virtual_pipeline_stage: int | None = None
    is_train_batch_min: str = True  # type: ignore[assignment]  # the public interface calls it text
    train_iters: int | None = None
    train_samples: int | None = None
    weight_decay_incr_style: str = "constant"
    start_weight_decay: float | None = None
    end_weight_decay: float | None = None
    lr_decay_style: str = "linear"
    lr_decay_iters: int | None = None
    lr_decay_samples: int | None = None
    lr_warmup_iters: int | None = None
    lr_warmup_samples: int | None = None
    lr_warmup_fraction: float | None = None
    min_lr: float = 0
    consumed_samples: list[int] | None = None
    no_wd_decay_cond: Callable[..., Any] | None = None
    scale_lr_cond: Callable[..., Any] | None = None
    lr_mult: float = 1.0
    megatron_dataset_flag: bool = False
    seq_length: int | None = None
    encoder_seq_length: int | None = None
    decoder_seq_length: int | None = None
    tensorboard_dir: str | None = None
    set_all_logging_options: bool = False
    eval_iters: int = 100
    eval_interval: int = 1000
    return_logits: bool = False
    custom_train_step_class: Any | None = None
    custom_train_step_kwargs: dict[str, Any] | None = None
    custom_model_provider_function: Callable[..., Any] | None = None
    custom_prepare_model_function: Callable[..., Any] | None = None
    custom_megatron_datasets_provider_function: Callable[..., Any] | None = None
    custom_get_batch_function: Callable[..., Any] | None = None
    custom_loss_function: Callable[..., Any] | None = None
    other_megatron_args: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        fill(self)
        for name in ("tp_degree", "pp_degree", "num_micro_batches"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} has to be at least 1.")
        self.DDP_impl = "torch" if self.pp_degree == 1 and not self.use_distributed_optimizer else "local"
        names = [item.name for item in fields(self) if _passed_on(item.name)]
        self.megatron_lm_default_args: dict[str, Any] = {
            _RENAMED.get(name, name): getattr(self, name) for name in names
        }
        self.megatron_lm_default_args["DDP_impl"] = self.DDP_impl
        if self.recompute_activations and self.recompute_granularity is None:
            self.megatron_lm_default_args["recompute_granularity"] = "selective"
        if self.tensorboard_dir:
            self.megatron_lm_default_args |= {"tensorboard_dir": self.tensorboard_dir}
        if self.tensorboard_dir and self.set_all_logging_options:
            self.set_tensorboard_logging_options()
        self.megatron_lm_default_args |= self.other_megatron_args or {}

    def set_network_size_args(self, model: Any, batch_data: Any = None) -> None:
        """Reads Megatron's arguments off a transformers model, by its ``config.model_type``.

        Raises:
            ConfigError: no reader is registered for that type.
        """
        self.megatron_lm_default_args.update(network_arguments(self, model, batch_data))

    def set_mixed_precision(self, mixed_precision: str) -> None:
        """Switches fp16 or bf16 on."""
        if mixed_precision == "fp16":
            self.megatron_lm_default_args["fp16"] = True
        elif mixed_precision == "bf16":
            self.megatron_lm_default_args["bf16"] = True
            self.DDP_impl = self.megatron_lm_default_args["DDP_impl"] = "local"

    def set_training_args(self, micro_batch_size: int, dp_degree: int) -> None:
        """Sets the sizes of batches and the data parallel degree."""
        self.data_parallel_size = dp_degree
        self.micro_batch_size = micro_batch_size
        self.global_batch_size = dp_degree * micro_batch_size * self.num_micro_batches
        self.megatron_lm_default_args.update(
            data_parallel_size=dp_degree,
            micro_batch_size=micro_batch_size,
            global_batch_size=self.global_batch_size,
        )

    def set_optimizer_type(self, optimizer: Any) -> None:
        """Reads kind and settings of a torch Adam, AdamW or SGD.

        Raises:
            ConfigError: it is another optimizer.
        """
        group = {**optimizer.param_groups[0], **(getattr(optimizer, "defaults", None) or {})}
        kind = type(optimizer).__name__
        found: dict[str, Any]
        if "adam" in kind.lower():
            first, second = group["betas"]
            found = {"optimizer": "adam", "adam_eps": group["eps"], "adam_beta1": first, "adam_beta2": second}
        elif "sgd" in kind.lower():
            found = {"sgd_momentum": group.get("momentum", 0.0), "optimizer": "sgd"}
        else:
            raise ConfigError(f"Megatron-LM has Adam and SGD, but {kind} was given. Use either.")
        found |= {"weight_decay": group.get("weight_decay", 0.0), "lr": group["lr"]}
        self.megatron_lm_default_args |= found

    def set_scheduler_args(self, scheduler: Any) -> None:
        """Takes total and warm-up steps of a ``DummyScheduler``, in the unit that the plugin counts in.

        Raises:
            ConfigError: the plugin and the scheduler both say how long training is.
        """
        total, warmup = scheduler.total_num_steps, scheduler.warmup_num_steps or 0
        arguments = self.megatron_lm_default_args
        if self.train_iters is None and self.train_samples is None:
            if total is None:
                raise ConfigError("Neither scheduler nor plugin says how long training is: set total_num_steps.")
            self.train_iters = total // self.megatron_lm_default_args.get("data_parallel_size", 1)
        iterations = self.train_iters is not None
        unit = "iters" if iterations else "samples"
        arguments[f"train_{unit}"] = getattr(self, f"train_{unit}")
        if getattr(self, f"lr_warmup_{unit}") is None and self.lr_warmup_fraction is None:
            share = arguments.get("data_parallel_size", 1) if iterations else 1
            setattr(self, f"lr_warmup_{unit}", warmup // share)
        for name in (f"lr_warmup_{unit}", f"lr_decay_{unit}", "lr_warmup_fraction"):
            if getattr(self, name) is not None:
                arguments[name] = getattr(self, name)
        for name in ("lr_decay_style", "weight_decay_incr_style", "min_lr", "start_weight_decay", "end_weight_decay"):
            arguments[name] = getattr(self, name)

    def set_tensorboard_logging_options(self) -> None:
        """Has Megatron write everything it can to TensorBoard."""
        for name in ("params_norm", "num_zeros_in_grad"):
            self.megatron_lm_default_args[f"log_{name}"] = True
        for name in ("timers", "batch_size", "validation_ppl", "memory", "world_size"):
            self.megatron_lm_default_args[f"log_{name}_to_tensorboard"] = True
