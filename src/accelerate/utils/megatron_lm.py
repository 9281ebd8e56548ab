"""Compatibility path of training with Megatron-LM."""

from accelerate import lazy

HOMES = {
    "accelerate.unbuilt": (
        "AbstractTrainStep BertTrainStep GPTTrainStep MegatronEngine MegatronLMDummyDataLoader "
        "MegatronLMDummyScheduler MegatronLMOptimizerWrapper MegatronLMSchedulerWrapper T5TrainStep "
        "avg_losses_across_data_parallel_group gather_across_data_parallel_groups"
    )
}

__getattr__, __dir__, __all__ = lazy.attach(__name__, lazy.by_name(HOMES))
