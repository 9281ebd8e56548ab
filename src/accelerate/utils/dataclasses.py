"""Public plugins, handlers and enumerations, under the path that others import them from."""

from __future__ import annotations

from accelerate import lazy

HOMES = {
    "accelerate.comm.nested": "TensorInformation",
    "accelerate.config.compile": "TorchDynamoPlugin",
    "accelerate.config.data": "DataLoaderConfiguration",
    "accelerate.config.deepspeed": "DeepSpeedPlugin",
    "accelerate.config.enums": (
        "BaseEnum ComputeEnvironment CustomDtype DDPCommunicationHookType DistributedType DynamoBackend LoggerType "
        "PrecisionType RNGType SageMakerDistributedType"
    ),
    "accelerate.config.fsdp": "FullyShardedDataParallelPlugin",
    "accelerate.config.handlers": (
        "AutocastKwargs DistributedDataParallelKwargs GradScalerKwargs GradientAccumulationPlugin "
        "InitProcessGroupKwargs KwargsHandler ProfileKwargs"
    ),
    "accelerate.config.megatron": "MegatronLMPlugin add_model_config_to_megatron_parser",
    "accelerate.config.parallelism": (
        "DeepSpeedSequenceParallelConfig TorchContextParallelConfig TorchTensorParallelConfig TorchTensorParallelPlugin"
    ),
    "accelerate.config.precision": "AORecipeKwargs FP8RecipeKwargs MSAMPRecipeKwargs TERecipeKwargs",
    "accelerate.config.project": "ProjectConfiguration",
    "accelerate.config.quantization": "BnbQuantizationConfig",
    "accelerate.config.wrapping": "get_module_class_from_name",
}

__getattr__, __dir__, __all__ = lazy.attach(__name__, lazy.by_name(HOMES))
