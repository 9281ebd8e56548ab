"""What differs from the promise, on purpose and not yet. Lists only get shorter, unless a reason is given here."""

from __future__ import annotations

# (name, problem as the test words it) → why it is so.
ON_PURPOSE: dict[tuple[str, str], str] = {
    ("DataLoaderConfiguration", "field use_seedable_sampler is True by default, not False"): (
        "resuming is exact by default, which needs an order that a seed and an epoch give again"
    ),
    ("load_checkpoint_and_dispatch", "strict is True by default, not False"): (
        "a checkpoint of another model is an error that lists the names, not a model with random weights"
    ),
    (
        "write_basic_config",
        "save_location is None by default, not '~/.cache/huggingface/accelerate/default_config.yaml'",
    ): ("None means the same file; where it is depends on HF_HOME when it is called, not when it is imported"),
}

# Names that can be imported and say that they are not built when they are used.
UNBUILT = {
    "AbstractTrainStep",
    "BertTrainStep",
    "GPTTrainStep",
    "MegatronEngine",
    "MegatronLMDummyDataLoader",
    "MegatronLMDummyScheduler",
    "MegatronLMOptimizerWrapper",
    "MegatronLMSchedulerWrapper",
    "T5TrainStep",
    "avg_losses_across_data_parallel_group",
    "gather_across_data_parallel_groups",
    "apply_fp8_autowrap",
    "contextual_fp8_autocast",
    "convert_model",
    "build_pipeline",
    "find_pippy_batch_size",
    "generate_device_map",
    "pippy_forward",
    "prepare_pippy",
    "install_xla",
    "load_and_quantize_model",
}

# Names that other libraries import from, or replace in, a module that does not have them yet.
NOT_THERE_YET: set[str] = set()
