"""Train PyTorch models on any hardware and any number of processes.

Every name is imported the first time it is used, so that ``import accelerate`` costs next to nothing.
"""

from accelerate import lazy
from accelerate._version import __version__ as __version__

HOMES = {
    "accelerate.accelerator": "Accelerator",
    "accelerate.comm.retry": "find_executable_batch_size",
    "accelerate.comm.rng": "synchronize_rng_states",
    "accelerate.config.data": "DataLoaderConfiguration",
    "accelerate.config.deepspeed": "DeepSpeedPlugin",
    "accelerate.config.enums": "DDPCommunicationHookType DistributedType",
    "accelerate.config.fsdp": "FullyShardedDataParallelPlugin",
    "accelerate.config.handlers": (
        "AutocastKwargs DistributedDataParallelKwargs GradScalerKwargs InitProcessGroupKwargs ProfileKwargs"
    ),
    "accelerate.config.parallelism": "ParallelismConfig",
    "accelerate.data.prepare": "prepare_data_loader",
    "accelerate.data.skip": "skip_first_batches",
    "accelerate.config.run": "RunConfig",
    "accelerate.launch.functions": "launch",
    "accelerate.launch.notebook": "debug_launcher notebook_launcher",
    "accelerate.offload.cpu": "cpu_offload_with_hook",
    "accelerate.offload.device_map": "infer_auto_device_map",
    "accelerate.offload.dispatch": "cpu_offload disk_offload dispatch_model",
    "accelerate.offload.empty": "init_empty_weights init_on_device",
    "accelerate.offload.load": "load_checkpoint_and_dispatch load_checkpoint_in_model",
    "accelerate.optional": "is_rich_available",
    "accelerate.state": "PartialState",
    "accelerate.unbuilt": "prepare_pippy",
}

_SUBMODULES = (
    "accelerator big_modeling checkpointing commands data_loader hooks inference launchers local_sgd logging "
    "memory_utils optimizer parallelism_config scheduler state tracking utils"
)

__getattr__, __dir__, __all__ = lazy.attach(__name__, lazy.by_name(HOMES), _SUBMODULES.split())
