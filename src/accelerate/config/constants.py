"""Words that settings accept, in the order in which the public interface lists them."""

from __future__ import annotations

from accelerate.config.enums import DynamoBackend

__all__ = [
    "DEEPSPEED_LAUNCHERS",
    "DYNAMO_BACKENDS",
    "DYNAMO_MODES",
    "FSDP_AUTO_WRAP_ALIASES",
    "FSDP_AUTO_WRAP_POLICY",
    "FSDP_BACKWARD_PREFETCH",
    "FSDP_SHARDING_STRATEGY",
    "FSDP_STATE_DICT_TYPE",
    "OFFLOAD_DEVICES",
]

FSDP_SHARDING_STRATEGY = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"]
FSDP_AUTO_WRAP_POLICY = ["TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"]
FSDP_AUTO_WRAP_ALIASES = (("TRANSFORMER_AUTO_WRAP", "TRANSFORMER_BASED_WRAP"), ("SIZE_AUTO_WRAP", "SIZE_BASED_WRAP"))
FSDP_BACKWARD_PREFETCH = ["BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"]
FSDP_STATE_DICT_TYPE = ["FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"]

OFFLOAD_DEVICES = ("none", "cpu", "nvme")

_MPI = ["openmpi", "mvapich", "mpich"]
DEEPSPEED_LAUNCHERS = ["pdsh", "standard", *_MPI, "nossh", "slurm"]

DYNAMO_MODES = ("default", "reduce-overhead", "max-autotune")
DYNAMO_BACKENDS = ("no", *(member.value.lower() for member in DynamoBackend if member is not DynamoBackend.NO))
