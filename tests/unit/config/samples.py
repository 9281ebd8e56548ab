"""Configuration files of every age, as text."""

from __future__ import annotations

OLDEST = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
fp16: true
machine_rank: 0
main_process_ip: null
main_process_port: null
main_training_function: main
num_machines: 1
num_processes: 2
"""

EARLY = """\
compute_environment: LOCAL_MACHINE
deepspeed_config: {}
distributed_type: 'NO'
downcast_bf16: 'no'
dynamo_backend: INDUCTOR
fsdp_config: {}
machine_rank: 0
main_process_ip: null
mixed_precision: no
num_machines: 1
num_processes: 1
use_cpu: false
"""

UNPREFIXED_FSDP = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  min_num_params: 2000
  offload_params: true
  sharding_strategy: 2
num_processes: 2
mixed_precision: fp16
"""

IPEX_AND_MPI = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_CPU
ipex_config:
  ipex: true
  use_xpu: false
mpirun_config:
  mpirun_ccl: '1'
  mpirun_hostfile: /home/me/hosts
num_machines: 4
num_processes: 16
use_cpu: true
"""

SAGEMAKER = """\
compute_environment: AMAZON_SAGEMAKER
distributed_type: NO
mixed_precision: fp16
debug: false
debug: false
use_cpu: false
ec2_instance_type: ml.g5.xlarge
iam_role_name: my-role
"""

FP8 = """\
distributed_type: MULTI_GPU
fp8_config:
  amax_compute_algo: max
  amax_history_len: 512
  backend: TE
  fp8_format: E4M3
  override_linear_precision: (false, true, false)
mixed_precision: fp8
num_processes: 2
"""

FSDP_2 = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_cpu_offload: false
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
mixed_precision: bf16
num_machines: 1
num_processes: 4
"""

TPU = """\
compute_environment: LOCAL_MACHINE
distributed_type: TPU
tpu_name: mine
tpu_zone: us-central1-a
tpu_use_cluster: true
tpu_env: ['A=1', 'B=2']
commands: null
command_file: setup.sh
"""

DEEPSPEED = """\
distributed_type: DEEPSPEED
deepspeed_config:
  gradient_accumulation_steps: 4
  gradient_clipping: 1.0
  offload_optimizer_device: none
  zero3_init_flag: false
  zero_stage: 2
num_processes: 8
"""

MESH = """\
distributed_type: FSDP
parallelism_config:
  parallelism_config_dp_shard_size: 2
  parallelism_config_tp_size: 2
  parallelism_config_cp_comm_strategy: alltoall
num_processes: 4
"""

MEGATRON = """\
distributed_type: MEGATRON_LM
megatron_lm_config:
  megatron_lm_pp_degree: 2
  megatron_lm_tp_degree: 2
  megatron_lm_sequence_parallelism: 'true'
num_processes: 4
"""

ALL = {
    "oldest": OLDEST,
    "early": EARLY,
    "unprefixed_fsdp": UNPREFIXED_FSDP,
    "ipex_and_mpi": IPEX_AND_MPI,
    "sagemaker": SAGEMAKER,
    "fp8": FP8,
    "fsdp_2": FSDP_2,
    "tpu": TPU,
    "deepspeed": DEEPSPEED,
    "mesh": MESH,
    "megatron": MEGATRON,
}
