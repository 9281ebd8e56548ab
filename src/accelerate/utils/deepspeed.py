"""Compatibility path of DeepSpeed's configuration and wrappers."""

from accelerate import lazy

HOMES = {
    "accelerate.config.deepspeed_json": "HfDeepSpeedConfig",
    "accelerate.unbuilt": (
        "DeepSpeedEngineWrapper DeepSpeedOptimizerWrapper DeepSpeedSchedulerWrapper DummyOptim DummyScheduler "
        "get_active_deepspeed_plugin map_pytorch_optim_to_deepspeed"
    ),
}

__getattr__, __dir__, __all__ = lazy.attach(__name__, lazy.by_name(HOMES))
