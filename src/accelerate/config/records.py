"""Configuration files as the public interface shows them: one record for a cluster, one for SageMaker."""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from accelerate.config import places
from accelerate.config.enums import ComputeEnvironment, DistributedType, SageMakerDistributedType
from accelerate.config.files import (
    default_config_path,
    find_config_file,
    is_deepspeed_config,
    read_config_file,
    read_raw,
)
from accelerate.errors import ConfigError

__all__ = [
    "BaseConfig",
    "ClusterConfig",
    "SageMakerConfig",
    "load_config_from_file",
]

Record = TypeVar("Record", bound="BaseConfig")

_WHEN_ABSENT: dict[str, Any] = {"mixed_precision": "no", "use_cpu": False, "debug": False, "distributed_type": "NO"}


@dataclass
class BaseConfig:
    """What both kinds of configuration have."""

    compute_environment: ComputeEnvironment
    distributed_type: DistributedType | SageMakerDistributedType
    mixed_precision: str
    use_cpu: bool
    debug: bool

    def __post_init__(self) -> None:
        self.compute_environment = ComputeEnvironment(self.compute_environment)
        kinds = SageMakerDistributedType if isinstance(self, SageMakerConfig) else DistributedType
        word = {"TPU": "XLA", "AUTO": "NO", "False": "NO"}.get(str(self.distributed_type), self.distributed_type)
        try:
            self.distributed_type = kinds(getattr(word, "value", word))
        except ValueError as error:
            raise ConfigError(
                f"distributed_type={word!r} is not known: use one of {', '.join(kind.value for kind in kinds)}."
            ) from error

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values; those that are None, and empty sections, are left out."""
        found: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None or value == {}:
                continue
            found[item.name] = value.value if isinstance(value, Enum) else value
        return found

    @staticmethod
    def process_config(config_dict: dict[str, Any]) -> dict[str, Any]:
        """``config_dict`` with what older releases spelt or left out as it is today."""
        found = dict(config_dict)
        found.setdefault("compute_environment", ComputeEnvironment.LOCAL_MACHINE.value)
        if isinstance(found.get("mixed_precision"), bool):
            found["mixed_precision"] = "no"  # YAML reads a bare `no` as False
        if isinstance(found.get("distributed_type"), bool):
            found["distributed_type"] = "NO"
        if "fp16" in found:
            found.setdefault("mixed_precision", "fp16" if found.pop("fp16") else "no")
        if "dynamo_backend" in found:
            backend = found.pop("dynamo_backend")
            if str(backend).upper() != "NO":
                found.setdefault("dynamo_config", {})["dynamo_backend"] = backend
        for name, value in _WHEN_ABSENT.items():
            if found.get(name) is None:
                found[name] = value
        return found

    @classmethod
    def from_mapping(cls: type[Record], data: dict[str, Any]) -> Record:
        """The record of a file's content; keys that mean nothing any more are passed over."""
        known = {item.name: item for item in fields(cls)}
        found = {name: value for name, value in cls.process_config(data).items() if name in known}
        missing = [
            name
            for name, item in known.items()
            if item.default is MISSING and item.default_factory is MISSING and name not in found
        ]
        if missing:
            raise ConfigError(f"A {cls.__name__} needs {', '.join(missing)}, which the file does not have.")
        return cls(**found)

    @classmethod
    def from_yaml_file(cls: type[Record], yaml_file: str | Path | None = None) -> Record:
        """The record of a YAML file, by default the one that `accelerate config` writes.

        Raises:
            UnknownKeyError: the file has keys that no setting owns.
        """
        path = Path(yaml_file) if yaml_file is not None else Path(places.default_yaml_config_file)
        read_config_file(path)
        return cls.from_mapping(read_raw(path))

    @classmethod
    def from_json_file(cls: type[Record], json_file: str | Path | None = None) -> Record:
        """The record of a JSON file."""
        path = Path(json_file) if json_file is not None else Path(places.default_json_config_file)
        read_config_file(path)
        return cls.from_mapping(read_raw(path))

    def to_json_file(self, json_file: str | Path) -> None:
        """Writes the record as JSON."""
        text = json.dumps(self.to_dict(), indent=2, sort_keys=True)
        Path(json_file).write_text(text + "\n", encoding="utf-8")

    def to_yaml_file(self, yaml_file: str | Path) -> None:
        """Writes the record as YAML."""
        import yaml

        Path(yaml_file).write_text(yaml.safe_dump(self.to_dict()), encoding="utf-8")


@dataclass
class ClusterConfig(BaseConfig):
    """A job on one's own machines. Sections are plain dictionaries with the keys of the file."""

    num_processes: int = -1  # one for each device
    machine_rank: int = 0
    num_machines: int = 1
    gpu_ids: str | None = None
    main_process_ip: str | None = None
    main_process_port: int | None = None
    rdzv_backend: str | None = "static"
    same_network: bool | None = False
    main_training_function: str = "main"
    enable_cpu_affinity: bool = False
    fp8_config: dict[str, Any] | None = None
    deepspeed_config: dict[str, Any] | None = None
    fsdp_config: dict[str, Any] | None = None
    parallelism_config: dict[str, Any] | None = None
    megatron_lm_config: dict[str, Any] | None = None
    mpirun_config: dict[str, Any] | None = None
    downcast_bf16: bool = False
    tpu_name: str | None = None
    tpu_zone: str | None = None
    tpu_use_cluster: bool = False
    tpu_use_sudo: bool = False
    command_file: str | None = None
    commands: list[str] | None = None
    tpu_vm: list[str] | None = None
    tpu_env: list[str] | None = None
    dynamo_config: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for item in fields(self):
            if item.name.endswith("_config") and getattr(self, item.name) is None:
                setattr(self, item.name, {})


@dataclass
class SageMakerConfig(BaseConfig):
    """A job on Amazon SageMaker."""

    ec2_instance_type: str
    iam_role_name: str
    image_uri: str | None = None
    profile: str | None = None
    region: str = "us-east-1"
    num_machines: int = 1
    gpu_ids: str = "all"
    base_job_name: str = "accelerate-sagemaker-1"
    pytorch_version: str = "1.10.2"
    transformers_version: str = "4.17.0"
    py_version: str = "py38"
    sagemaker_inputs_file: str | None = None
    sagemaker_metrics_file: str | None = None
    additional_args: dict[str, Any] | None = None
    dynamo_config: dict[str, Any] | None = None
    enable_cpu_affinity: bool = False


def load_config_from_file(config_file: str | Path | None) -> ClusterConfig | SageMakerConfig:
    """The record of a configuration file, by default the one that `accelerate config` writes.

    Raises:
        ConfigError: there is no such file, or it holds something else.
        UnknownKeyError: it has keys that no setting owns.
    """
    path = find_config_file(config_file) or find_config_file(default_config_path())
    assert path is not None
    raw = read_raw(path)
    if is_deepspeed_config(set(raw)):
        raise ConfigError(f"{path} is DeepSpeed's own configuration; it has no record. Launch with it as it is.")
    read_config_file(path)
    if raw.get("compute_environment") == ComputeEnvironment.AMAZON_SAGEMAKER.value:
        return SageMakerConfig.from_mapping(raw)
    return ClusterConfig.from_mapping(raw)
