"""Words, numbers and members for FSDP turned into torch's own objects. torch is imported when one is asked for."""

from __future__ import annotations

from typing import Any

from accelerate.config.constants import (
    FSDP_AUTO_WRAP_ALIASES,
    FSDP_AUTO_WRAP_POLICY,
    FSDP_BACKWARD_PREFETCH,
    FSDP_SHARDING_STRATEGY,
    FSDP_STATE_DICT_TYPE,
)
from accelerate.config.notice import notice
from accelerate.errors import ConfigError, ConflictError

__all__ = [
    "auto_wrap",
    "leave_out",
    "offload",
    "offload_class",
    "policy",
    "policy_class",
    "policy_for_version",
    "prefetch",
    "reshard_of_version_2",
    "sharding",
    "sharding_of_version_1",
    "state_dict",
    "state_dict_configs",
]


def _word(field: str, value: Any, words: list[str]) -> str:
    """One of ``words``, given as such in any case, as its number from 1, or as an enumeration's member."""
    text = str(getattr(value, "name", value)).upper()
    if text.isdigit() and 1 <= int(text) <= len(words):
        return words[int(text) - 1]
    if text in words:
        return text
    raise ConfigError(f"{field}={value!r} is not known: use one of {', '.join(words)}.")


def auto_wrap(value: Any) -> str:
    """The word of FSDP_AUTO_WRAP_POLICY that ``value`` stands for."""
    aliases = dict(FSDP_AUTO_WRAP_ALIASES)
    text = str(getattr(value, "name", value)).upper()
    return _word("auto_wrap_policy", aliases.get(text, text), FSDP_AUTO_WRAP_POLICY)


def sharding(value: Any) -> str:
    """The word of FSDP_SHARDING_STRATEGY that ``value`` stands for."""
    text = str(getattr(value, "name", value)).upper()
    if text == "_HYBRID_SHARD_ZERO2":  # torch's own member has an underscore
        text = "HYBRID_SHARD_ZERO2"
    return _word("sharding_strategy", text, FSDP_SHARDING_STRATEGY)


def _member(word: str) -> Any:
    from torch.distributed.fsdp import ShardingStrategy

    return ShardingStrategy["_HYBRID_SHARD_ZERO2" if word == "HYBRID_SHARD_ZERO2" else word]


def sharding_of_version_1(strategy: str | None, reshard: Any, taken: dict[str, str]) -> tuple[Any, Any]:
    """(sharding_strategy, reshard_after_forward) of version 1: the second is None, or repeats the first."""
    if reshard is None:
        return _member(strategy or "FULL_SHARD"), None
    if isinstance(reshard, bool):
        asked = "FULL_SHARD" if reshard else "SHARD_GRAD_OP"
        if strategy is not None and not _agree(strategy, reshard):
            if "reshard_after_forward" in taken:  # a launch publishes its own default beside the strategy
                return _member(strategy), None
            raise ConflictError(
                f"sharding_strategy={strategy} and reshard_after_forward={reshard} contradict each other. "
                "Version 1 takes the strategy alone."
            )
        if strategy is None:
            notice(
                f"reshard_after_forward={reshard} is version 2's word; version 1 takes it as sharding_strategy={asked}."
            )
        return _member(strategy or asked), None
    if isinstance(reshard, int) and not hasattr(reshard, "name"):
        raise ConfigError(
            f"reshard_after_forward={reshard}: only version 2 shards over smaller groups after the forward pass. "
            "Use fsdp_version=2, or sharding_strategy='HYBRID_SHARD'."
        )
    word = sharding(reshard)
    if strategy is not None and strategy != word:
        raise ConflictError(f"sharding_strategy={strategy} and reshard_after_forward={word} contradict each other.")
    return _member(word), _member(word)


def _agree(strategy: str, reshard: bool) -> bool:
    return (strategy in ("FULL_SHARD", "HYBRID_SHARD")) == reshard


def reshard_of_version_2(strategy: str | None, reshard: Any, taken: dict[str, str]) -> bool | int:
    """``reshard_after_forward`` of version 2: True, False, or the size of the groups that stay whole."""
    if reshard is not None and not isinstance(reshard, (bool, int)):
        strategy, reshard = sharding(reshard), None
    if strategy is None:
        return True if reshard is None else reshard
    if strategy == "NO_SHARD":
        raise ConfigError(
            "sharding_strategy=NO_SHARD: version 2 always shards. Leave FSDP out for plain data parallelism."
        )
    if strategy.startswith("HYBRID"):
        raise ConfigError(
            f"sharding_strategy={strategy}: version 2 takes copies of a sharded model from the mesh. Use "
            "ParallelismConfig(dp_replicate_size=<copies>, dp_shard_size=<ranks of a copy>) and "
            f"reshard_after_forward={strategy == 'HYBRID_SHARD'}."
        )
    asked = strategy == "FULL_SHARD"
    if reshard is None:
        notice(
            f"sharding_strategy={strategy} is version 1's word; version 2 takes it as reshard_after_forward={asked}."
        )
        return asked
    if "sharding_strategy" not in taken and isinstance(reshard, bool) and reshard != asked:
        raise ConflictError(
            f"sharding_strategy={strategy} and reshard_after_forward={reshard} contradict each other. "
            "Version 2 takes reshard_after_forward alone."
        )
    return reshard  # type: ignore[no-any-return]


def leave_out(name: str, value: Any, taken: dict[str, str]) -> None:
    """Says that a field of version 1 has no meaning in version 2, where code (not a launch) has set it."""
    if value is not None and name not in taken:
        notice(f"{name}={value!r} is left out: FSDP version 2 has no such setting.")


def prefetch(value: Any) -> Any:
    """A member of torch's BackwardPrefetch, or None for NO_PREFETCH."""
    if value is None:
        return None
    word = _word("backward_prefetch", value, FSDP_BACKWARD_PREFETCH)
    if word == "NO_PREFETCH":
        return None
    from torch.distributed.fsdp import BackwardPrefetch

    return BackwardPrefetch[word]


def state_dict(value: Any, version: int) -> Any:
    """A member of torch's StateDictType.

    Raises:
        ConfigError: version 2 was asked for local state.
    """
    from torch.distributed.fsdp import StateDictType

    word = _word("state_dict_type", value, FSDP_STATE_DICT_TYPE)
    if version == 2 and word == "LOCAL_STATE_DICT":
        raise ConfigError(
            "state_dict_type=LOCAL_STATE_DICT: version 2 has no flat local state. Use SHARDED_STATE_DICT or "
            "FULL_STATE_DICT."
        )
    return StateDictType[word]


def state_dict_configs(kind: Any) -> tuple[Any, Any]:
    """(for the model, for the optimizer): torch's options for a kind of state. Full state goes to rank 0's memory."""
    from torch.distributed import fsdp

    if kind is fsdp.StateDictType.FULL_STATE_DICT:
        full = {"offload_to_cpu": True, "rank0_only": True}
        return fsdp.FullStateDictConfig(**full), fsdp.FullOptimStateDictConfig(**full)
    if kind is fsdp.StateDictType.SHARDED_STATE_DICT:
        return (
            fsdp.ShardedStateDictConfig(offload_to_cpu=True),
            fsdp.ShardedOptimStateDictConfig(offload_to_cpu=True),
        )
    return fsdp.LocalStateDictConfig(offload_to_cpu=True), fsdp.LocalOptimStateDictConfig(offload_to_cpu=True)


def offload_class(version: int) -> type:
    """The class of ``cpu_offload``."""
    from torch.distributed import fsdp

    return fsdp.CPUOffload if version == 1 else fsdp.OffloadPolicy


def offload(value: Any, version: int) -> Any:
    """Version 1's CPUOffload or version 2's OffloadPolicy; the other version's object is translated."""
    from torch.distributed import fsdp

    if isinstance(value, offload_class(version)):
        return value
    if isinstance(value, fsdp.CPUOffload):
        value = value.offload_params
    elif isinstance(value, fsdp.OffloadPolicy):
        value = isinstance(value, fsdp.CPUOffloadPolicy)
    if not isinstance(value, bool):
        raise ConfigError(f"cpu_offload={value!r} is not known: use True, False or torch's own object.")
    if version == 1:
        return fsdp.CPUOffload(offload_params=value)
    return fsdp.CPUOffloadPolicy() if value else fsdp.OffloadPolicy()


def policy_class(version: int) -> type:
    """The class of ``mixed_precision_policy``."""
    from torch.distributed import fsdp

    return fsdp.MixedPrecision if version == 1 else fsdp.MixedPrecisionPolicy


def policy_for_version(value: Any, version: int) -> Any:
    """The other version's policy translated; anything else as it is."""
    from torch.distributed import fsdp

    if version == 2 and isinstance(value, fsdp.MixedPrecision):
        notice("A MixedPrecision of version 1 was given to version 2: its param_dtype and reduce_dtype are taken over.")
        return fsdp.MixedPrecisionPolicy(param_dtype=value.param_dtype, reduce_dtype=value.reduce_dtype)
    if version == 1 and isinstance(value, fsdp.MixedPrecisionPolicy):
        notice("A MixedPrecisionPolicy of version 2 was given to version 1: its dtypes are taken over.")
        return fsdp.MixedPrecision(
            param_dtype=value.param_dtype, reduce_dtype=value.reduce_dtype, buffer_dtype=value.output_dtype
        )
    return value


def _dtype(value: Any) -> Any:
    import torch

    names = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16, "no": torch.float32}
    if value is None or isinstance(value, torch.dtype):
        return value
    text = str(value).lower().removeprefix("torch.")
    found = names.get(text) or getattr(torch, text, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ConfigError(f"{value!r} is no floating-point type: use bf16, fp16, fp32 or a torch.dtype.")
    return found


def policy(value: Any, version: int, buffer_autocast: bool = False) -> Any:
    """The version's policy from a word (``bf16``), a dtype, or a dictionary of its arguments."""
    import torch
    from torch.distributed import fsdp

    kind = policy_class(version)
    if isinstance(value, dict):
        known = kind.__dataclass_fields__  # type: ignore[attr-defined]
        wrong = [name for name in value if name not in known]
        if wrong:
            raise ConfigError(
                f"mixed_precision_policy has {', '.join(wrong)}, which {kind.__name__} does not take. It takes "
                f"{', '.join(name for name in known if not name.startswith('_'))}."
            )
        return kind(**{name: _dtype(item) if name.endswith("_dtype") else item for name, item in value.items()})
    dtype = _dtype("float32" if str(value).lower() in ("no", "fp32") else value)
    if version == 2:
        return fsdp.MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype, output_dtype=dtype)
    buffers = torch.float32 if buffer_autocast else dtype
    return fsdp.MixedPrecision(param_dtype=dtype, reduce_dtype=dtype, buffer_dtype=buffers)
