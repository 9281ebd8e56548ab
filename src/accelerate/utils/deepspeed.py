"""Compatibility path of DeepSpeed's configuration and wrappers."""

from accelerate import lazy

HOMES = {
    "accelerate.config.deepspeed_json": "HfDeepSpeedConfig",
    "accelerate.strategies.deepspeed.handle": "DeepSpeedEngineWrapper",
    "accelerate.strategies.deepspeed.named": "get_active_deepspeed_plugin",
    "accelerate.strategies.deepspeed.optimizers": "map_pytorch_optim_to_deepspeed",
    "accelerate.strategies.deepspeed.placeholders": "DummyOptim DummyScheduler",
    "accelerate.strategies.deepspeed.universal": "zero_to_fp32",
    "accelerate.strategies.deepspeed.wrappers": "DeepSpeedOptimizerWrapper DeepSpeedSchedulerWrapper",
}

__getattr__, __dir__, __all__ = lazy.attach(__name__, lazy.by_name(HOMES))
