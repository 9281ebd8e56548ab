"""What transformers and deepspeed are told before a model exists."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from accelerate.optional import is_transformers_available, require

__all__ = ["announce", "mark_leaves"]

_HOLDER = "transformers.integrations.deepspeed"


def announce(plugin: Any) -> Any | None:
    """transformers' configuration object of a plugin with a sharded start, or None; keep it as long as it is to hold.

    Without a sharded start, one that was announced before is taken back.
    """
    if not is_transformers_available():
        return None
    from importlib import import_module

    holder = import_module(_HOLDER)
    if not plugin.zero3_init_flag:
        holder.unset_hf_deepspeed_config()
        return None
    config = copy.deepcopy(plugin.deepspeed_config)
    # deepspeed checks the whole configuration where it creates a model; what is not known yet stands at 1
    for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        if config.get(key, "auto") == "auto":
            config[key] = 1
    if config.get("train_batch_size", "auto") == "auto":
        config.pop("train_batch_size", None)
    return holder.HfDeepSpeedConfig(config)


def mark_leaves(model: Any, classes: Sequence[type]) -> None:
    """Has ZeRO-3 gather modules of these classes as a whole.

    Raises:
        MissingPackageError: deepspeed is not installed.
    """
    require("deepspeed", "transformer_moe_cls_names")
    from deepspeed.utils import set_z3_leaf_modules

    set_z3_leaf_modules(model, list(classes))
