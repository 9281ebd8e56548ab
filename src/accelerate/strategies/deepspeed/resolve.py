"""One resolved configuration for one engine: every "auto" filled, every contradiction an error."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Iterator
from typing import Any

import torch

from accelerate.config.conflict import reconcile
from accelerate.config.deepspeed_json import HfDeepSpeedConfig
from accelerate.errors import ConfigError, ConflictError, PrepareError
from accelerate.strategies.deepspeed.facts import Facts
from accelerate.strategies.deepspeed.placeholders import DummyOptim, DummyScheduler

__all__ = ["autos", "resolve"]

_MICRO, _STEPS, _TOTAL = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"
_ZERO = "zero_optimization"
_LOSS_SCALE = {
    "loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2,
    "consecutive_hysteresis": False, "min_loss_scale": 1, "auto_cast": True,
}  # fmt: skip
_OTHER_DEFAULTS = {
    "gradient_clipping": 0.0, "zero_allow_untested_optimizer": False, "prescale_gradients": False,
    "gradient_predivide_factor": 1.0, "sparse_gradients": False, "communication_data_type": None,
    "wall_clock_breakdown": False, "memory_breakdown": False, "dump_state": False, "steps_per_print": math.inf,
    "torch_autocast.enabled": False, "torch_autocast.dtype": "bfloat16", "bf16.enabled": False, "fp16.enabled": False,
}  # fmt: skip


def autos(config: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted keys that a configuration leaves "auto"."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from autos(value, f"{prefix}{key}.")
        elif value == "auto":
            yield f"{prefix}{key}"


def resolve(plugin: Any, facts: Facts) -> dict[str, Any]:
    """A copy of the plugin's configuration with nothing left open. What was "auto" is filled in the plugin's own
    configuration too, and stays open for the next ``prepare``.

    Raises:
        ConflictError: two places say different things; the message has both.
        ConfigError: a key is "auto" and nothing says what it should be.
        PrepareError: an optimizer or scheduler cannot be had from this configuration.
    """
    tree = HfDeepSpeedConfig(plugin.deepspeed_config)
    filled: dict[str, Any] = plugin.__dict__.setdefault("_filled", {})
    for key, value in filled.items():
        if tree.get_value(key) == value:
            tree.set_value(key, "auto")
    open_keys = list(autos(tree.config))
    _check_sections(tree, facts)
    _fill_batches(plugin, tree, facts)
    _fill_optimizer(tree, facts)
    _fill_scheduler(tree, facts)
    for key in autos(copy.deepcopy(tree.config)):
        tree.set_value(key, _default(tree, key, facts))
    filled.clear()
    own = HfDeepSpeedConfig(plugin.deepspeed_config)
    own.config = plugin.deepspeed_config
    for key in open_keys:
        filled[key] = tree.get_value(key)
        own.set_value(key, filled[key])
    return tree.config


# Batches


def _said(tree: HfDeepSpeedConfig, key: str) -> Any:
    value = tree.get_value(key)
    return None if value == "auto" else value


def _fill_batches(plugin: Any, tree: HfDeepSpeedConfig, facts: Facts) -> None:
    steps = _steps(plugin, tree, facts)
    micro, total = _said(tree, _MICRO), _said(tree, _TOTAL)
    if micro is not None and facts.loaders_given and facts.batches and micro not in facts.batches:
        raise ConflictError(
            f"DeepSpeed's `{_MICRO}` is {micro} in its configuration, and the data loaders that were prepared give "
            f"batches of {', '.join(map(str, sorted(set(facts.batches))))} on each process. Make them equal, or write "
            '"auto" in the configuration.'
        )
    if micro is None:
        if facts.batches:
            micro = (min if plugin.is_train_batch_min else max)(facts.batches)
        else:
            micro = max(1, total // (steps * facts.ranks)) if total is not None else 1
    if total is not None and total != micro * steps * facts.ranks:
        raise ConflictError(
            f"DeepSpeed's `{_TOTAL}` is {total} in its configuration, but {micro} samples in a micro-batch x {steps} "
            f"accumulation steps x {facts.ranks} processes make {micro * steps * facts.ranks}. Change one of them, or "
            f'write "auto" for `{_TOTAL}`.'
        )
    tree.config.update({_MICRO: micro, _STEPS: steps, _TOTAL: micro * steps * facts.ranks})


def _steps(plugin: Any, tree: HfDeepSpeedConfig, facts: Facts) -> int:
    said = _said(tree, _STEPS)
    if facts.steps == 1:
        return int(said or 1)
    where = plugin.origin(_STEPS)
    chosen = reconcile(
        _STEPS,
        facts.steps,
        said,
        1,
        code=f"{_STEPS}={facts.steps} in Accelerator()",
        launch=f"{_STEPS}={said} in {where or 'the DeepSpeed configuration'}",
        rule="error" if where is None else "code",
    )
    return int(chosen)


# Optimizer and scheduler


def _check_sections(tree: HfDeepSpeedConfig, facts: Facts) -> None:
    if (tree.get_value("fp16.enabled"), tree.get_value("bf16.enabled")) == (True, True):
        raise ConflictError("DeepSpeed's configuration has fp16.enabled=True and bf16.enabled=True. Switch one off.")
    written = tree.get_value("optimizer.type")
    dummy = isinstance(facts.optimizer, DummyOptim)
    if written is not None and facts.optimizer is not None and not dummy:
        raise ConflictError(
            f"An optimizer was given twice: {written} in DeepSpeed's configuration, and "
            f"{type(facts.optimizer).__name__} in prepare(). Remove the section `optimizer` from the configuration, or "
            "pass accelerate.utils.DummyOptim to prepare()."
        )
    if dummy and written is None:
        raise PrepareError(
            "prepare() got a DummyOptim, but DeepSpeed's configuration has no section `optimizer` to make one from. "
            "Write one, or pass a real optimizer."
        )
    _check_scheduler(tree, facts, dummy)


def _check_scheduler(tree: HfDeepSpeedConfig, facts: Facts, dummy: bool) -> None:
    written, given = tree.get_value("scheduler.type"), facts.scheduler
    placeholder = isinstance(given, DummyScheduler)
    made = getattr(given, "lr_scheduler_callable", None) if placeholder else None
    if written is not None and given is not None and (not placeholder or made is not None):
        other = "a DummyScheduler with lr_scheduler_callable" if placeholder else type(given).__name__
        raise ConflictError(
            f"A scheduler was given twice: {written} in DeepSpeed's configuration, and {other} in prepare(). Remove "
            "the section `scheduler` from the configuration, or pass accelerate.utils.DummyScheduler(optimizer)."
        )
    if placeholder and written is None and made is None:
        raise PrepareError(
            "prepare() got a DummyScheduler, but DeepSpeed's configuration has no section `scheduler` to make one "
            "from. Write one, pass DummyScheduler(…, lr_scheduler_callable=…), or pass a real scheduler."
        )
    if given is not None and not placeholder and dummy:
        raise PrepareError(
            f"prepare() got {type(given).__name__} together with a DummyOptim: the scheduler drives an optimizer that "
            "the engine does not use. Pass DummyScheduler(optimizer, lr_scheduler_callable=lambda optimizer: …)."
        )


def _fill_optimizer(tree: HfDeepSpeedConfig, facts: Facts) -> None:
    dummy = facts.optimizer
    if not isinstance(dummy, DummyOptim):
        if not facts.trains or facts.optimizer is not None:
            return
        dummy = DummyOptim([])
    params = tree.get_value("optimizer.params")
    if not isinstance(params, dict):
        return
    given = {"lr": dummy.lr, "weight_decay": dummy.weight_decay, **dummy.kwargs}
    usual = {"lr": 0.001, "weight_decay": 0}
    for key, value in given.items():
        said = params.get(key)
        if said == "auto":
            params[key] = value
        elif said is not None and value != usual.get(key) and not _equal(said, value):
            raise ConflictError(
                f"DeepSpeed's `optimizer.params.{key}` is {said} in its configuration, and DummyOptim has "
                f"{key}={value}. Remove one of them."
            )
        elif said is None and key in dummy.kwargs:
            params[key] = value


def _equal(said: Any, value: Any) -> bool:
    if isinstance(said, (list, tuple)) and isinstance(value, (list, tuple)):
        return list(said) == list(value)
    return bool(said == value)


def _fill_scheduler(tree: HfDeepSpeedConfig, facts: Facts) -> None:
    params = tree.get_value("scheduler.params")
    if not isinstance(params, dict):
        return
    given = facts.scheduler if isinstance(facts.scheduler, DummyScheduler) else DummyScheduler(None)
    rate = tree.get_value("optimizer.params.lr")
    if rate is None and facts.optimizer is not None and not isinstance(facts.optimizer, DummyOptim):
        rate = max(group["lr"] for group in facts.optimizer.param_groups)
    values: dict[str, Any] = {"warmup_min_lr": 0, "warmup_max_lr": rate, **given.kwargs}
    values["warmup_num_steps"] = math.ceil(given.warmup_num_steps / facts.moves)
    if given.total_num_steps is not None:
        values["total_num_steps"] = math.ceil(given.total_num_steps / facts.moves)
    for key, value in values.items():
        said = params.get(key)
        if said == "auto" and value is not None:
            params[key] = value
        elif key in given.kwargs and said is not None and not _equal(said, value):
            raise ConflictError(
                f"DeepSpeed's `scheduler.params.{key}` is {said} in its configuration, and DummyScheduler has "
                f"{key}={value}. Remove one of them."
            )
        elif key in given.kwargs and said is None:
            params[key] = value


# What nobody says


def _default(tree: HfDeepSpeedConfig, key: str, facts: Facts) -> Any:
    head, _, last = key.rpartition(".")
    if head == _ZERO:
        return _zero_default(tree, last, facts)
    if head in (f"{_ZERO}.offload_optimizer", f"{_ZERO}.offload_param"):
        return {"device": "none", "nvme_path": None}.get(last, False)
    if key in _OTHER_DEFAULTS:
        return _OTHER_DEFAULTS[key]
    if head == "fp16" and last in _LOSS_SCALE:
        return _LOSS_SCALE[last]
    if head == "optimizer.params":
        made = getattr(torch.optim, str(tree.get_value("optimizer.type")), torch.optim.AdamW)
        known = inspect.signature(made).parameters.get(last)
        if known is not None and known.default is not inspect.Parameter.empty:
            return list(known.default) if isinstance(known.default, tuple) else known.default
    hint = " Pass DummyScheduler(optimizer, total_num_steps=…)." if last == "total_num_steps" else ""
    raise ConfigError(
        f'`{key}` is "auto" in DeepSpeed\'s configuration, and nothing here says what it should be.{hint} Write a '
        "value there."
    )


def _zero_default(tree: HfDeepSpeedConfig, key: str, facts: Facts) -> Any:
    """DeepSpeed's own default, except for buffers, which follow the width of the model."""
    stage = tree.get_value(f"{_ZERO}.stage", 0)
    if facts.hidden_size is not None:
        size = facts.hidden_size
        by_width = {
            "reduce_bucket_size": size * size,
            "stage3_prefetch_bucket_size": int(0.9 * size * size),
            "stage3_param_persistence_threshold": 10 * size,
        }
        if key in by_width:
            return by_width[key]
    if key == "overlap_comm":
        return stage == 3
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    for name, field in DeepSpeedZeroConfig.model_fields.items():
        if key in (name, field.alias):
            default = field.get_default(call_default_factory=True)
            return int(default) if isinstance(default, int) and not isinstance(default, bool) else default
    raise ConfigError(f'`{_ZERO}.{key}` is "auto" in DeepSpeed\'s configuration, which has no such key.')
