# ruff: noqa: I001
"""Train PyTorch models on any hardware and any number of processes."""

from accelerate import accelerator as accelerator
from accelerate import big_modeling as big_modeling
from accelerate import checkpointing as checkpointing
from accelerate import commands as commands
from accelerate import data_loader as data_loader
from accelerate import hooks as hooks
from accelerate import inference as inference
from accelerate import launchers as launchers
from accelerate import local_sgd as local_sgd
from accelerate import logging as logging
from accelerate import memory_utils as memory_utils
from accelerate import optimizer as optimizer
from accelerate import parallelism_config as parallelism_config
from accelerate import scheduler as scheduler
from accelerate import state as state
from accelerate import tracking as tracking
from accelerate import utils as utils
from accelerate.accelerator import Accelerator as Accelerator
from accelerate.comm.retry import find_executable_batch_size as find_executable_batch_size
from accelerate.comm.rng import synchronize_rng_states as synchronize_rng_states
from accelerate.config.data import DataLoaderConfiguration as DataLoaderConfiguration
from accelerate.config.deepspeed import DeepSpeedPlugin as DeepSpeedPlugin
from accelerate.config.enums import DDPCommunicationHookType as DDPCommunicationHookType
from accelerate.config.enums import DistributedType as DistributedType
from accelerate.config.fsdp import FullyShardedDataParallelPlugin as FullyShardedDataParallelPlugin
from accelerate.config.handlers import AutocastKwargs as AutocastKwargs
from accelerate.config.handlers import DistributedDataParallelKwargs as DistributedDataParallelKwargs
from accelerate.config.handlers import GradScalerKwargs as GradScalerKwargs
from accelerate.config.handlers import InitProcessGroupKwargs as InitProcessGroupKwargs
from accelerate.config.handlers import ProfileKwargs as ProfileKwargs
from accelerate.config.parallelism import ParallelismConfig as ParallelismConfig
from accelerate.config.run import RunConfig as RunConfig
from accelerate.data.prepare import prepare_data_loader as prepare_data_loader
from accelerate.data.skip import skip_first_batches as skip_first_batches
from accelerate.launch.functions import launch as launch
from accelerate.launch.notebook import debug_launcher as debug_launcher
from accelerate.launch.notebook import notebook_launcher as notebook_launcher
from accelerate.offload.cpu import cpu_offload_with_hook as cpu_offload_with_hook
from accelerate.offload.device_map import infer_auto_device_map as infer_auto_device_map
from accelerate.offload.dispatch import cpu_offload as cpu_offload
from accelerate.offload.dispatch import disk_offload as disk_offload
from accelerate.offload.dispatch import dispatch_model as dispatch_model
from accelerate.offload.empty import init_empty_weights as init_empty_weights
from accelerate.offload.empty import init_on_device as init_on_device
from accelerate.offload.load import load_checkpoint_and_dispatch as load_checkpoint_and_dispatch
from accelerate.offload.load import load_checkpoint_in_model as load_checkpoint_in_model
from accelerate.optional import is_rich_available as is_rich_available
from accelerate.state import PartialState as PartialState
from accelerate.unbuilt import prepare_pippy as prepare_pippy
from accelerate._version import __version__ as __version__

__all__: list[str]
