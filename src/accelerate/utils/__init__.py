"""Everything that helps around a training loop, under one name. Each is imported the first time it is used."""

from accelerate import lazy

HOMES = {
    "accelerate.checkpoint.files": "clean_state_dict_for_safetensors load save",
    "accelerate.cli.config_basic": "write_basic_config",
    "accelerate.cli.programs": (
        "prepare_deepspeed_cmd_env prepare_multi_gpu_env prepare_sagemager_args_inputs "
        "prepare_simple_launcher_cmd_env prepare_tpu"
    ),
    "accelerate.comm.nested": (
        "TensorInformation concatenate find_batch_size find_device get_data_structure "
        "ignorant_find_batch_size initialize_tensors is_tensor_information listify pad_input_tensors "
        "slice_tensors"
    ),
    "accelerate.comm.operations": (
        "CannotPadNestedTensorWarning GatheredParameters broadcast broadcast_object_list "
        "copy_tensor_to_devices gather gather_object pad_across_processes reduce"
    ),
    "accelerate.comm.placement": "convert_outputs_to_fp32 convert_to_fp32 send_to_device",
    "accelerate.comm.retry": "find_executable_batch_size",
    "accelerate.comm.rng": "synchronize_rng_state synchronize_rng_states",
    "accelerate.comm.structure": "honor_type is_namedtuple is_torch_tensor recursively_apply",
    "accelerate.config.compile": "TorchDynamoPlugin",
    "accelerate.config.data": "DataLoaderConfiguration",
    "accelerate.config.deepspeed": "DeepSpeedPlugin",
    "accelerate.config.deepspeed_json": "HfDeepSpeedConfig",
    "accelerate.config.enums": (
        "ComputeEnvironment CustomDtype DDPCommunicationHookType DistributedType DynamoBackend LoggerType "
        "PrecisionType RNGType SageMakerDistributedType"
    ),
    "accelerate.config.fsdp": "FullyShardedDataParallelPlugin",
    "accelerate.config.handlers": (
        "AutocastKwargs DistributedDataParallelKwargs GradScalerKwargs GradientAccumulationPlugin "
        "InitProcessGroupKwargs KwargsHandler ProfileKwargs"
    ),
    "accelerate.config.megatron": "MegatronLMPlugin",
    "accelerate.config.megatron_models": "add_model_config_to_megatron_parser",
    "accelerate.config.parallelism": (
        "DeepSpeedSequenceParallelConfig ParallelismConfig TorchContextParallelConfig "
        "TorchTensorParallelConfig TorchTensorParallelPlugin"
    ),
    "accelerate.config.precision": "AORecipeKwargs FP8RecipeKwargs MSAMPRecipeKwargs TERecipeKwargs",
    "accelerate.config.project": "ProjectConfiguration",
    "accelerate.config.quantization": "BnbQuantizationConfig",
    "accelerate.devices.host": (
        "check_cuda_fp8_capability check_cuda_p2p_ib_support get_cpu_distributed_information get_gpu_info "
        "set_numa_affinity"
    ),
    "accelerate.devices.memory": "release_memory",
    "accelerate.devices.probes": (
        "is_bf16_available is_cuda_available is_fp16_available is_habana_gaudi1 is_hpu_available "
        "is_mlu_available is_mps_available is_musa_available is_neuron_available is_npu_available "
        "is_rocm_available is_sdaa_available is_torch_xla_available is_xccl_available is_xpu_available"
    ),
    "accelerate.devices.rng": "set_seed",
    "accelerate.env": (
        "are_libraries_initialized clear_environment convert_dict_to_env_variables get_int_from_env "
        "parse_choice_from_env parse_flag_from_env patch_environment purge_accelerate_environment "
        "str_to_bool"
    ),
    "accelerate.launch.ranks": "PrepareForLaunch",
    "accelerate.machine": "check_os_kernel is_port_in_use",
    "accelerate.modules": (
        "get_model_tp_size get_module_children_bottom_up has_4bit_bnb_layers "
        "has_transformer_engine_layers is_peft_model model_has_dtensor"
    ),
    "accelerate.objects": "get_pretty_name merge_dicts recursive_getattr",
    "accelerate.offload.budget": "get_balanced_memory get_max_memory",
    "accelerate.offload.device_map": "check_device_map infer_auto_device_map",
    "accelerate.offload.disk": (
        "OffloadedWeightsLoader PrefixedDataset extract_submodules_state_dict load_offloaded_weight "
        "offload_state_dict offload_weight save_offload_index"
    ),
    "accelerate.offload.load": "load_checkpoint_in_model load_offloaded_weights load_state_dict",
    "accelerate.offload.sizes": (
        "calculate_maximum_sizes compute_module_sizes convert_bytes convert_file_size_to_int "
        "dtype_byte_size get_max_layer_size"
    ),
    "accelerate.offload.tensors": (
        "align_module_device has_offloaded_params id_tensor_storage named_module_tensors set_module_tensor_to_device"
    ),
    "accelerate.offload.tied": (
        "check_tied_parameters_in_config check_tied_parameters_on_same_device find_tied_parameters retie_parameters"
    ),
    "accelerate.optional": (
        "compare_versions deepspeed_required is_4bit_bnb_available is_8bit_bnb_available is_aim_available "
        "is_amdsmi_available is_bitsandbytes_multi_backend_available is_bnb_available is_boto3_available "
        "is_clearml_available is_comet_ml_available is_datasets_available is_deepspeed_available "
        "is_dvclive_available is_fp8_available is_import_timer_available is_lomo_available "
        "is_matplotlib_available is_megatron_lm_available is_mlflow_available is_msamp_available "
        "is_pandas_available is_peft_available is_pippy_available is_pynvml_available is_pytest_available "
        "is_rich_available is_sagemaker_available is_schedulefree_available is_swanlab_available "
        "is_tensorboard_available is_timm_available is_torch_version is_torchao_available "
        "is_torchdata_available is_torchdata_stateful_dataloader_available is_torchvision_available "
        "is_trackio_available is_transformer_engine_available is_transformer_engine_mxfp8_available "
        "is_transformers_available is_triton_available is_wandb_available is_weights_only_available "
        "torchao_required"
    ),
    "accelerate.precision.ao": "convert_model_to_fp8_ao filter_first_and_last_linear_layers has_ao_layers",
    "accelerate.precision.calls": "get_grad_scaler get_mixed_precision_context_manager",
    "accelerate.progress": "tqdm",
    "accelerate.state.legacy": "get_current_device_type",
    "accelerate.strategies.deepspeed.handle": "DeepSpeedEngineWrapper",
    "accelerate.strategies.deepspeed.placeholders": "DummyOptim DummyScheduler",
    "accelerate.strategies.deepspeed.wrappers": "DeepSpeedOptimizerWrapper DeepSpeedSchedulerWrapper",
    "accelerate.strategies.fsdp2.by_hand": (
        "disable_fsdp_ram_efficient_loading enable_fsdp_ram_efficient_loading ensure_weights_retied "
        "fsdp2_apply_ac fsdp2_canonicalize_names fsdp2_load_full_state_dict fsdp2_prepare_model "
        "fsdp2_switch_optimizer_parameters get_fsdp2_grad_scaler"
    ),
    "accelerate.strategies.sharded.merge": "merge_fsdp_weights",
    "accelerate.strategies.sharded.saving": ("load_fsdp_model load_fsdp_optimizer save_fsdp_model save_fsdp_optimizer"),
    "accelerate.strategies.unwrap": "extract_model_from_parallel",
    "accelerate.sync": "wait_for_everyone",
    "accelerate.transforms.compile": (
        "compile_regions compile_regions_deepspeed compile_regions_fsdp2 has_compiled_regions is_compiled_module"
    ),
    "accelerate.unbuilt": (
        "AbstractTrainStep BertTrainStep GPTTrainStep MegatronLMDummyDataLoader "
        "MegatronLMDummyScheduler T5TrainStep apply_fp8_autowrap "
        "avg_losses_across_data_parallel_group "
        "contextual_fp8_autocast convert_model install_xla load_and_quantize_model"
    ),
    "accelerate.words": (
        "MITA_PROFILING_AVAILABLE_PYTORCH_VERSION MODEL_NAME OPTIMIZER_NAME PROFILE_PATTERN_NAME "
        "RNG_STATE_NAME SAFE_MODEL_NAME SAFE_WEIGHTS_INDEX_NAME SAFE_WEIGHTS_NAME "
        "SAFE_WEIGHTS_PATTERN_NAME SAMPLER_NAME SCALER_NAME SCHEDULER_NAME "
        "TORCH_DISTRIBUTED_OPERATION_TYPES TORCH_LAUNCH_PARAMS WEIGHTS_INDEX_NAME WEIGHTS_NAME "
        "WEIGHTS_PATTERN_NAME XPU_PROFILING_AVAILABLE_PYTORCH_VERSION"
    ),
}

_SUBMODULES = (
    "ao bnb constants dataclasses deepspeed environment fsdp_utils imports launch megatron_lm memory modeling offload "
    "operations other random rich torch_xla tqdm transformer_engine versions"
)

__getattr__, __dir__, __all__ = lazy.attach(__name__, lazy.by_name(HOMES), _SUBMODULES.split())
