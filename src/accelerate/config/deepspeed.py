"""DeepSpeed, as code asks for it: one resolved configuration from a plugin, a dictionary, a JSON or the launch."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from accelerate.config import deepspeed_json as tree
from accelerate.config.deepspeed_json import HfDeepSpeedConfig
from accelerate.config.filling import fill, filled, from_environment
from accelerate.config.notice import notice
from accelerate.config.run import RunConfig
from accelerate.config.sections.deepspeed import DeepSpeedSection
from accelerate.config.sections.precision import Fp8Section
from accelerate.config.wrapping import get_module_class_from_name
from accelerate.errors import ConfigError, ConflictError, StateError

__all__ = ["DeepSpeedPlugin", "HfDeepSpeedConfig"]

_ZERO = "zero_optimization"
_KEYS = {
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
    "zero_stage": f"{_ZERO}.stage",
    "offload_optimizer_device": f"{_ZERO}.offload_optimizer.device",
    "offload_param_device": f"{_ZERO}.offload_param.device",
    "offload_optimizer_nvme_path": f"{_ZERO}.offload_optimizer.nvme_path",
    "offload_param_nvme_path": f"{_ZERO}.offload_param.nvme_path",
    "zero3_save_16bit_model": f"{_ZERO}.stage3_gather_16bit_weights_on_model_save",
}
"""Fields of the plugin that DeepSpeed's configuration has too."""

_DEFAULTS: dict[str, Any] = {
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_stage": 2,
    "offload_optimizer_device": "none",
    "offload_param_device": "none",
    "offload_optimizer_nvme_path": "none",
    "offload_param_nvme_path": "none",
    "zero3_save_16bit_model": False,
}


@dataclass
class DeepSpeedPlugin:
    """What DeepSpeed is to do. ``deepspeed_config`` is the resolved dictionary, the same as ``hf_ds_config.config``.

    ``hf_ds_config`` is a path, JSON text, a dictionary (copied) or a configuration object, which is kept as it is.
    Fields that are None come from the launch, then from ``hf_ds_config``. A field and the configuration may not say
    different things. Fields that stay "auto" are filled when objects are prepared.
    """

    hf_ds_config: Any = filled(DeepSpeedSection, "deepspeed_config_file")
    gradient_accumulation_steps: int = filled(RunConfig, "gradient_accumulation_steps")
    gradient_clipping: float = filled(RunConfig, "gradient_clipping")
    zero_stage: int = filled(DeepSpeedSection, "zero_stage")
    is_train_batch_min: bool = True
    offload_optimizer_device: str = filled(DeepSpeedSection, "offload_optimizer_device")
    offload_param_device: str = filled(DeepSpeedSection, "offload_param_device")
    offload_optimizer_nvme_path: str = filled(DeepSpeedSection, "offload_optimizer_nvme_path")
    offload_param_nvme_path: str = filled(DeepSpeedSection, "offload_param_nvme_path")
    zero3_init_flag: bool = filled(DeepSpeedSection, "zero3_init_flag")
    zero3_save_16bit_model: bool = filled(DeepSpeedSection, "zero3_save_16bit_model")
    transformer_moe_cls_names: str = filled(DeepSpeedSection, "deepspeed_moe_layer_cls_names")
    enable_msamp: bool = None  # type: ignore[assignment]  # None: whether the launch asked for MS-AMP
    msamp_opt_level: Literal["O1", "O2"] | None = None

    def __post_init__(self) -> None:
        given = {name: "code" for name in _KEYS if getattr(self, name) is not None}
        launched = fill(self)
        given.update(launched)
        self._launched = launched
        self._selected = False
        if self.hf_ds_config is None:
            self.hf_ds_config = HfDeepSpeedConfig(self._stock())
        elif not hasattr(self.hf_ds_config, "config"):
            self.hf_ds_config = HfDeepSpeedConfig(self.hf_ds_config)
        self.deepspeed_config: dict[str, Any] = self.hf_ds_config.config
        self._merge(given)
        self._settle_msamp()
        self.deepspeed_config.setdefault("steps_per_print", math.inf)
        self._settle_init()

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> DeepSpeedPlugin:
        """A plugin from a plain dictionary: fields of the plugin, DeepSpeed's own keys, or both.

        ``offload_optimizer`` and ``offload_param`` may be True, False, a device or DeepSpeed's dictionary.

        Raises:
            ConfigError: a key is none of these.
        """
        from accelerate.config.files import DEEPSPEED_KEYS

        own = {item.name for item in fields(cls)}
        engine: dict[str, Any] = {}
        chosen: dict[str, Any] = {}
        is_json = bool(set(settings) & (DEEPSPEED_KEYS - own))
        for key, value in settings.items():
            if key in ("offload_optimizer", "offload_param") and not isinstance(value, Mapping):
                device = value if isinstance(value, str) else "cpu" if value else "none"
                chosen[f"{key}_device"] = device
            elif key in ("offload_optimizer", "offload_param"):
                chosen.update({f"{key}_{name}": item for name, item in value.items() if f"{key}_{name}" in own})
            elif key in own:
                chosen[key] = value
            elif is_json or key in DEEPSPEED_KEYS:
                engine[key] = value
            else:
                near = difflib.get_close_matches(key, [*own, *DEEPSPEED_KEYS], n=1)
                hint = f" Did you mean {near[0]!r}?" if near else f" It takes {', '.join(sorted(own))}."
                raise ConfigError(f"deepspeed_plugin={{{key!r}: {value!r}}}: there is no such setting.{hint}")
        if engine and "hf_ds_config" in chosen:
            raise ConflictError(
                f"A DeepSpeed configuration was given twice: as hf_ds_config, and by the keys {', '.join(engine)}."
            )
        if engine:
            chosen["hf_ds_config"] = engine
        return cls(**chosen)

    # ---- one source of truth

    def _stock(self) -> dict[str, Any]:
        return {
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            _ZERO: {
                "stage": "auto",
                "offload_optimizer": {"device": "auto", "nvme_path": "auto"},
                "offload_param": {"device": "auto", "nvme_path": "auto"},
                "stage3_gather_16bit_weights_on_model_save": "auto",
            },
            "gradient_clipping": "auto",
        }

    def _merge(self, given: dict[str, str]) -> None:
        """Brings fields and configuration together; ``given`` says where a field came from."""
        for name, key in _KEYS.items():
            value, said = getattr(self, name), self.get_value(key)
            if said is not None and said != "auto":
                if name in given and not _same(name, value, said):
                    place = "" if given[name] == "code" else f" ({given[name]})"
                    raise ConflictError(
                        f"DeepSpeed's `{key}` is {said!r} in its configuration, and {name}={value!r}{place}. "
                        "Remove one of them."
                    )
                setattr(self, name, said)
                continue
            if value is None:
                value = _DEFAULTS[name]
                if name == "zero_stage" and said is None:
                    value = 0  # DeepSpeed's own default where its configuration does not mention ZeRO
                setattr(self, name, value)
            if said == "auto" or name in given:
                written = None if name.endswith("nvme_path") and value == "none" else value
                _write(self.deepspeed_config, key, written)
        if hasattr(self.hf_ds_config, "set_stage_and_offload"):
            self.hf_ds_config.set_stage_and_offload()

    def _settle_msamp(self) -> None:
        if self.enable_msamp is None:
            self.enable_msamp = from_environment(Fp8Section, "backend") == "msamp"
        if self.msamp_opt_level is None:
            self.msamp_opt_level = from_environment(Fp8Section, "opt_level") or "O1"
        if self.enable_msamp:
            if self.zero_stage == 3:
                raise ConfigError("enable_msamp=True works with ZeRO stages 0 to 2, and zero_stage is 3.")
            self.deepspeed_config.setdefault("msamp", {"enabled": True, "opt_level": self.msamp_opt_level})

    def _settle_init(self) -> None:
        if self.zero3_init_flag is None:
            self.zero3_init_flag = self.zero_stage == 3
        elif self.zero3_init_flag and self.zero_stage != 3:
            notice(f"zero3_init_flag=True has no effect: zero_stage is {self.zero_stage}, and only stage 3 has it.")
            self.zero3_init_flag = False
        if isinstance(self.transformer_moe_cls_names, tuple):
            self.transformer_moe_cls_names = ",".join(self.transformer_moe_cls_names)

    # ---- asking and filling the configuration

    def get_value(self, ds_key_long: str, default: Any = None) -> Any:
        """The value of a dotted key of the configuration, or ``default``."""
        return self.hf_ds_config.get_value(ds_key_long, default)

    def is_auto(self, ds_key_long: str) -> bool:
        """Whether a dotted key is left to be filled."""
        return bool(self.get_value(ds_key_long) == "auto")

    def origin(self, name: str) -> str | None:
        """The variable of the launch that decided a field; None where code or DeepSpeed's configuration did."""
        return None if "hf_ds_config" in self._launched else self._launched.get(name)

    def fill_match(
        self, ds_key_long: str, mismatches: list[str] | None = None, must_match: bool = True, **kwargs: Any
    ) -> None:
        """Fills a dotted key that is "auto" from ``kwargs``; a different value is added to ``mismatches``.

        Raises:
            ConfigError: it is "auto", and ``kwargs`` does not have it.
        """
        tree.fill_match(self.hf_ds_config, ds_key_long, [] if mismatches is None else mismatches, must_match, kwargs)

    def deepspeed_config_process(
        self,
        prefix: str = "",
        mismatches: list[str] | None = None,
        config: dict[str, Any] | None = None,
        must_match: bool = True,
        **kwargs: Any,
    ) -> None:
        """Fills every "auto" below ``prefix`` from ``kwargs`` (by dotted key).

        Raises:
            ConflictError: values differ (all of them are listed), unless ``must_match`` is False.
        """
        found: list[str] = [] if mismatches is None else mismatches
        node = self.deepspeed_config if config is None else config
        tree.process(self.hf_ds_config, prefix, found, node, must_match, kwargs)
        if found and not prefix:
            raise ConflictError("\n".join(["DeepSpeed's configuration differs from what was asked for:", *found]))

    def set_mixed_precision(self, mixed_precision: Any) -> None:
        """Sets fp16 and bf16 in the configuration where it leaves them open.

        Raises:
            ConflictError: the configuration has chosen the other one.
        """
        word = str(mixed_precision)
        wanted = "bf16" if word == "fp8" and not self.enable_msamp else word
        chosen = self.configured_precision()
        if chosen is not None and wanted in ("fp16", "bf16") and chosen != wanted:
            raise ConflictError(
                f"mixed_precision={word!r}, but DeepSpeed's configuration has {chosen} enabled. Change one of them, or "
                f'write "enabled": "auto" there.'
            )
        for mode in ("fp16", "bf16"):
            enabled = mode == (chosen or wanted)
            section = self.deepspeed_config.get(mode)
            if not isinstance(section, dict):
                self.deepspeed_config[mode] = {"enabled": enabled}
                if mode == "fp16" and enabled:
                    self.deepspeed_config[mode]["auto_cast"] = True
            elif section.get("enabled", "auto") == "auto":
                section["enabled"] = enabled
            elif section["enabled"] is False and enabled:
                raise ConflictError(
                    f"mixed_precision={word!r}, but DeepSpeed's configuration has {mode} switched off. Change one of "
                    'them, or write "enabled": "auto" there.'
                )

    def configured_precision(self) -> str | None:
        """``fp16`` or ``bf16`` where the configuration has switched it on itself."""
        for mode in ("fp16", "bf16"):
            section = self.deepspeed_config.get(mode)
            if isinstance(section, dict) and section.get("enabled") is True:
                return mode
        return None

    # ---- ZeRO-3 start, experts, selection

    def is_zero3_init_enabled(self) -> bool:
        """Whether transformers models start sharded."""
        return self.zero3_init_flag

    def set_deepspeed_weakref(self) -> None:
        """Tells transformers whether ``from_pretrained`` is to create models sharded."""
        from accelerate.config.deepspeed_start import announce

        self.dschf = announce(self)

    @contextmanager
    def zero3_init_context_manager(self, enable: bool = False) -> Iterator[None]:
        """Switches the sharded start of transformers models on or off inside a ``with`` block."""
        before = self.zero3_init_flag
        if before == enable:
            yield
            return
        self.zero3_init_flag = enable
        self.set_deepspeed_weakref()
        try:
            yield
        finally:
            self.zero3_init_flag = before
            self.set_deepspeed_weakref()

    def set_moe_leaf_modules(self, model: Any) -> None:
        """Has ZeRO-3 treat the named mixture-of-experts layers of ``model`` as one module each."""
        names = [name.strip() for name in (self.transformer_moe_cls_names or "").split(",") if name.strip()]
        if not names:
            return
        classes = {name: get_module_class_from_name(model, name) for name in names}
        missing = [name for name, found in classes.items() if found is None]
        if missing:
            raise ConfigError(
                f"transformer_moe_cls_names names {', '.join(missing)}, which {type(model).__name__} does not have."
            )
        from accelerate.config.deepspeed_start import mark_leaves

        mark_leaves(model, [found for found in classes.values() if found is not None])

    @property
    def selected(self) -> bool:
        """Whether this is the one in use of several named plugins."""
        return self._selected

    def select(self, _from_accelerator_state: bool = False) -> None:
        """Marks the plugin as the one in use; the state does it.

        Raises:
            StateError: it was called by hand.
        """
        if not _from_accelerator_state:
            raise StateError(
                "A DeepSpeedPlugin is put in use by the state: call accelerator.state.select_deepspeed_plugin(name)."
            )
        self._selected = True

    def _unselect(self) -> None:
        self._selected = False


def _same(name: str, value: Any, said: Any) -> bool:
    if value == said or value == "auto":
        return True
    return name.endswith("nvme_path") and str(value) == "none" and Path(str(said)) == Path("none")


def _write(config: dict[str, Any], key: str, value: Any) -> None:
    *way, last = key.split(".")
    for part in way:
        config = config.setdefault(part, {})
    config[last] = value
