"""The closed sets of words that settings take. Values are part of the public interface."""

from __future__ import annotations

from enum import Enum, EnumMeta
from typing import Any

__all__ = [
    "BaseEnum",
    "ComputeEnvironment",
    "CustomDtype",
    "DDPCommunicationHookType",
    "DistributedType",
    "DynamoBackend",
    "LoggerType",
    "PrecisionType",
    "RNGType",
    "SageMakerDistributedType",
]


class _Membership(EnumMeta):
    """Lets ``"fp16" in PrecisionType`` answer by value on every Python version."""

    def __contains__(cls, item: Any) -> bool:
        try:
            cls(item)
        except ValueError:
            return False
        return True


class BaseEnum(Enum, metaclass=_Membership):
    """An enumeration whose members print as their values and that lists them."""

    def __str__(self) -> str:
        return str(self.value)

    @classmethod
    def list(cls) -> list[Any]:
        """The values, in order of declaration."""
        return [member.value for member in cls]


class DistributedType(str, Enum):
    """How a job is distributed, as the public interface reports it. Derived from strategy and device."""

    NO = "NO"
    MULTI_CPU = "MULTI_CPU"
    MULTI_GPU = "MULTI_GPU"
    MULTI_NPU = "MULTI_NPU"
    MULTI_MLU = "MULTI_MLU"
    MULTI_SDAA = "MULTI_SDAA"
    MULTI_MUSA = "MULTI_MUSA"
    MULTI_XPU = "MULTI_XPU"
    MULTI_HPU = "MULTI_HPU"
    MULTI_NEURON = "MULTI_NEURON"
    DEEPSPEED = "DEEPSPEED"
    FSDP = "FSDP"
    XLA = "XLA"
    MEGATRON_LM = "MEGATRON_LM"


class SageMakerDistributedType(str, Enum):
    """How a SageMaker job is distributed."""

    NO = "NO"
    DATA_PARALLEL = "DATA_PARALLEL"
    MODEL_PARALLEL = "MODEL_PARALLEL"


class ComputeEnvironment(str, Enum):
    """Where a job runs."""

    LOCAL_MACHINE = "LOCAL_MACHINE"
    AMAZON_SAGEMAKER = "AMAZON_SAGEMAKER"


class PrecisionType(str, BaseEnum):
    """Mixed precision modes."""

    NO = "no"
    FP8 = "fp8"
    FP16 = "fp16"
    BF16 = "bf16"


class DynamoBackend(str, BaseEnum):
    """Back ends of ``torch.compile``. Names are upper case here and lower case in torch."""

    AOT_EAGER = "AOT_EAGER"
    AOT_TORCHXLA_TRACE_ONCE = "AOT_TORCHXLA_TRACE_ONCE"
    AOT_TS_NVFUSER = "AOT_TS_NVFUSER"
    CUDAGRAPHS = "CUDAGRAPHS"
    EAGER = "EAGER"
    FX2TRT = "FX2TRT"
    HPU_BACKEND = "HPU_BACKEND"
    INDUCTOR = "INDUCTOR"
    NEURON = "NEURON"
    NO = "NO"
    NVPRIMS_NVFUSER = "NVPRIMS_NVFUSER"
    OFI = "OFI"
    ONNXRT = "ONNXRT"
    TENSORRT = "TENSORRT"
    TORCHXLA_TRACE_ONCE = "TORCHXLA_TRACE_ONCE"
    TVM = "TVM"


class RNGType(BaseEnum):
    """Random generators that can be kept in step over the ranks."""

    GENERATOR = "generator"
    CUDA = "cuda"
    HPU = "hpu"
    MLU = "mlu"
    MUSA = "musa"
    NEURON = "neuron"
    NPU = "npu"
    SDAA = "sdaa"
    TORCH = "torch"
    XLA = "xla"
    XPU = "xpu"


class LoggerType(BaseEnum):
    """Experiment trackers known by name."""

    AIM = "aim"
    ALL = "all"
    CLEARML = "clearml"
    COMETML = "comet_ml"
    DVCLIVE = "dvclive"
    MLFLOW = "mlflow"
    SWANLAB = "swanlab"
    TENSORBOARD = "tensorboard"
    TRACKIO = "trackio"
    WANDB = "wandb"


class DDPCommunicationHookType(BaseEnum):
    """Gradient compression hooks of DistributedDataParallel."""

    NO = "no"
    FP16 = "fp16"
    BF16 = "bf16"
    POWER_SGD = "power_sgd"
    BATCHED_POWER_SGD = "batched_power_sgd"


class CustomDtype(Enum):
    """Element types that torch has no dtype for, used when memory is planned."""

    FP8 = "fp8"
    INT4 = "int4"
    INT2 = "int2"
