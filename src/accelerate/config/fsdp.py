"""Fully sharded data parallelism, as code asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from accelerate.config import fsdp_words as words
from accelerate.config.filling import fill, filled
from accelerate.config.sections.fsdp import FsdpSection
from accelerate.config.wrapping import (
    get_module_class_from_name,
    layer_classes,
    layer_policy,
    policy_function,
    policy_name,
    size_policy,
)
from accelerate.errors import ConfigError, ConflictError

if TYPE_CHECKING:
    import torch

__all__ = ["FullyShardedDataParallelPlugin"]


@dataclass
class FullyShardedDataParallelPlugin:
    """What FSDP is to do. After construction the fields hold torch's own objects, for the version chosen.

    Fields that are None come from the launch, else from ``fsdp_version`` (1 by default). Words, members of torch's
    enumerations and objects are taken alike. What belongs to the other version is translated, with a notice:
    ``sharding_strategy`` (1) and ``reshard_after_forward`` (2) say the same thing. ``min_num_params`` and
    ``transformer_cls_names_to_wrap`` go with the policies by size and by layer class. ``ignored_modules`` are modules
    or a pattern of their names. ``limit_all_gathers`` holds for version 1.
    """

    fsdp_version: int = filled(FsdpSection, "version", fallback=1)
    sharding_strategy: str | torch.distributed.fsdp.ShardingStrategy = filled(FsdpSection, "sharding_strategy")
    reshard_after_forward: str | torch.distributed.fsdp.ShardingStrategy | bool = filled(
        FsdpSection, "reshard_after_forward"
    )
    backward_prefetch: str | torch.distributed.fsdp.BackwardPrefetch | None = filled(FsdpSection, "backward_prefetch")
    mixed_precision_policy: (
        dict[str, Any]
        | str
        | torch.distributed.fsdp.MixedPrecision
        | torch.distributed.fsdp.MixedPrecisionPolicy
        | None
    ) = None
    auto_wrap_policy: Callable[..., Any] | Literal["transformer_based_wrap", "size_based_wrap", "no_wrap"] | None = (
        filled(FsdpSection, "auto_wrap_policy")
    )
    cpu_offload: bool | torch.distributed.fsdp.CPUOffload | torch.distributed.fsdp.CPUOffloadPolicy = filled(
        FsdpSection, "offload_params", fallback=False
    )
    ignored_modules: Iterable[torch.nn.Module] | str | None = filled(FsdpSection, "ignored_modules")
    state_dict_type: str | torch.distributed.fsdp.StateDictType = filled(FsdpSection, "state_dict_type")
    state_dict_config: (
        torch.distributed.fsdp.FullStateDictConfig | torch.distributed.fsdp.ShardedStateDictConfig | None
    ) = None
    optim_state_dict_config: (
        torch.distributed.fsdp.FullOptimStateDictConfig | torch.distributed.fsdp.ShardedOptimStateDictConfig | None
    ) = None
    limit_all_gathers: bool = True
    use_orig_params: bool | None = filled(FsdpSection, "use_orig_params")
    param_init_fn: Callable[[torch.nn.Module], None] | None = None
    sync_module_states: bool | None = filled(FsdpSection, "sync_module_states")
    forward_prefetch: bool = filled(FsdpSection, "forward_prefetch")
    activation_checkpointing: bool = filled(FsdpSection, "activation_checkpointing", fallback=False)
    activation_checkpointing_offload: bool = filled(FsdpSection, "activation_checkpointing_offload", fallback=False)
    cpu_ram_efficient_loading: bool = filled(FsdpSection, "cpu_ram_efficient_loading", fallback=False)
    transformer_cls_names_to_wrap: list[str] | None = filled(FsdpSection, "transformer_layer_cls_to_wrap")
    min_num_params: int | None = filled(FsdpSection, "min_num_params")

    get_module_class_from_name = staticmethod(get_module_class_from_name)

    def __post_init__(self) -> None:
        taken = fill(self)
        if str(self.fsdp_version) not in ("1", "2"):
            raise ConfigError(f"fsdp_version={self.fsdp_version!r} is not known: use 1 or 2.")
        self.fsdp_version = int(self.fsdp_version)
        self._choose_sharding(taken)
        self._settle_version(taken)
        self.set_cpu_offload()
        self._settle_units()
        self.set_state_dict_type()
        if self.mixed_precision_policy is not None:
            self._read_policy(self.mixed_precision_policy)

    # ---- reading the fields

    def _choose_sharding(self, taken: dict[str, str]) -> None:
        """``sharding_strategy`` and ``reshard_after_forward`` by version; the other version's word is translated."""
        strategy = None if self.sharding_strategy is None else words.sharding(self.sharding_strategy)
        reshard = self.reshard_after_forward
        if self.fsdp_version == 1:
            self.sharding_strategy, self.reshard_after_forward = words.sharding_of_version_1(strategy, reshard, taken)
        else:
            self.sharding_strategy = None  # type: ignore[assignment]
            self.reshard_after_forward = words.reshard_of_version_2(strategy, reshard, taken)  # type: ignore[assignment]

    def _settle_version(self, taken: dict[str, str]) -> None:
        """Fields that only version 1 has: their defaults there, None (with a notice where code set one) in 2."""
        self.backward_prefetch = words.prefetch(self.backward_prefetch)
        if self.fsdp_version == 2:
            for name in ("backward_prefetch", "use_orig_params", "sync_module_states"):
                words.leave_out(name, getattr(self, name), taken)
                setattr(self, name, None)
            return
        if self.cpu_ram_efficient_loading and self.sync_module_states is False:
            raise ConflictError(
                "cpu_ram_efficient_loading=True loads weights on the first rank only, and sync_module_states=False "
                "keeps them from reaching the others. Set sync_module_states=True."
            )
        defaults = {"use_orig_params": False, "sync_module_states": self.cpu_ram_efficient_loading}
        for name, value in {**defaults, "forward_prefetch": False}.items():
            if getattr(self, name) is None:
                setattr(self, name, bool(value))

    def _settle_units(self) -> None:
        if isinstance(self.transformer_cls_names_to_wrap, str):
            self.transformer_cls_names_to_wrap = [
                name.strip() for name in self.transformer_cls_names_to_wrap.split(",") if name.strip()
            ]
        elif self.transformer_cls_names_to_wrap is not None:
            self.transformer_cls_names_to_wrap = list(self.transformer_cls_names_to_wrap)
        if self.auto_wrap_policy is None and self.transformer_cls_names_to_wrap:
            self.auto_wrap_policy = policy_function("TRANSFORMER_BASED_WRAP")
        elif self.auto_wrap_policy is not None and not callable(self.auto_wrap_policy):
            self.auto_wrap_policy = policy_function(words.auto_wrap(self.auto_wrap_policy))

    def _read_policy(self, policy: Any) -> None:
        if isinstance(policy, (dict, str)):
            self.set_mixed_precision(policy, override=True)
        else:
            self.mixed_precision_policy = words.policy_for_version(policy, self.fsdp_version)
        self.validate_mixed_precision_policy()

    # ---- the public methods

    def set_state_dict_type(self, state_dict_type: Any = None) -> None:
        """Chooses how state is gathered, and the options that go with it where code did not give its own."""
        asked = state_dict_type if state_dict_type is not None else self.state_dict_type
        changed = state_dict_type is not None
        if asked is None:
            asked = "FULL_STATE_DICT" if self.fsdp_version == 1 else "SHARDED_STATE_DICT"
        kind = words.state_dict(asked, self.fsdp_version)
        model_config, optimizer_config = words.state_dict_configs(kind)
        self.state_dict_type = kind
        if changed or self.state_dict_config is None:
            self.state_dict_config = model_config
        if changed or self.optim_state_dict_config is None:
            self.optim_state_dict_config = optimizer_config

    def set_auto_wrap_policy(self, model: Any) -> None:
        """Completes a policy by layer class or by size for ``model``; any other callable is left as it is.

        Raises:
            ConfigError: the model has no layers of a class that was named.
        """
        name = policy_name(self.auto_wrap_policy)
        if name == "TRANSFORMER_BASED_WRAP":
            classes = layer_classes(model, self.transformer_cls_names_to_wrap)
            self.auto_wrap_policy = layer_policy(classes)
        elif name == "SIZE_BASED_WRAP":
            self.auto_wrap_policy = size_policy(self.min_num_params or 100_000_000)

    def set_mixed_precision(self, mixed_precision: Any, buffer_autocast: bool = False, override: bool = False) -> None:
        """Sets the policy from a word, a ``torch.dtype`` or a dictionary, unless there is one already.

        ``buffer_autocast`` keeps buffers in float32 (version 1). ``override`` replaces a policy that is there.
        """
        if self.mixed_precision_policy is not None and not override:
            return
        self.mixed_precision_policy = words.policy(mixed_precision, self.fsdp_version, buffer_autocast)

    def validate_mixed_precision_policy(self) -> None:
        """Checks that the policy is the version's own.

        Raises:
            ConfigError: it is something else.
        """
        wanted = words.policy_class(self.fsdp_version)
        if self.mixed_precision_policy is not None and not isinstance(self.mixed_precision_policy, wanted):
            raise ConfigError(
                f"mixed_precision_policy={self.mixed_precision_policy!r}: version {self.fsdp_version} takes a "
                f"{wanted.__name__}, a dictionary of its arguments, or a word such as 'bf16'."
            )

    def set_cpu_offload(self) -> None:
        """Turns ``cpu_offload`` into torch's object of the version in use."""
        self.cpu_offload = words.offload(self.cpu_offload, self.fsdp_version)

    def validate_cpu_offload(self) -> None:
        """Checks that ``cpu_offload`` is the version's own.

        Raises:
            ConfigError: it is something else.
        """
        wanted = words.offload_class(self.fsdp_version)
        if not isinstance(self.cpu_offload, wanted):
            raise ConfigError(
                f"cpu_offload={self.cpu_offload!r}: version {self.fsdp_version} takes True, False or a "
                f"{wanted.__name__}."
            )
