"""How many ways a job is split, and by what."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from accelerate.config.filling import fill, filled
from accelerate.config.sections.parallelism import ParallelismSection
from accelerate.errors import ConfigError, ConflictError, StateError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = [
    "DeepSpeedSequenceParallelConfig",
    "ParallelismConfig",
    "TorchContextParallelConfig",
    "TorchTensorParallelConfig",
    "TorchTensorParallelPlugin",
]

_ORDER = ("dp_replicate", "dp_shard", "cp", "sp", "tp")  # of the mesh, outermost first
_ATTENTIONS = ("sdpa", "flash_attention_2", "flash_attention_3")


@dataclass
class TorchTensorParallelConfig:
    """Tensor parallelism by torch. ``enable_async_tp`` overlaps its messages with the products they belong to."""

    enable_async_tp: bool = False


@dataclass
class TorchContextParallelConfig:
    """Context parallelism by torch: keys and values travel by ``allgather`` or ``alltoall``."""

    cp_comm_strategy: str | None = filled(ParallelismSection, "cp_comm_strategy", fallback="allgather")

    def __post_init__(self) -> None:
        fill(self)
        if self.cp_comm_strategy not in ("allgather", "alltoall"):
            raise ConfigError(f"cp_comm_strategy={self.cp_comm_strategy!r} is not known: use allgather or alltoall.")


@dataclass
class DeepSpeedSequenceParallelConfig:
    """Ulysses sequence parallelism by DeepSpeed.

    ``sp_seq_length`` is the length of sequences where all batches share it, else ``sp_seq_length_is_variable``.
    ``sp_attn_implementation`` is a flash attention, sdpa, or a kernel of the hub (``owner/name``).
    """

    sp_seq_length: int | None = filled(ParallelismSection, "sp_seq_length")
    sp_seq_length_is_variable: bool | None = filled(ParallelismSection, "sp_seq_length_is_variable")
    sp_attn_implementation: str | None = filled(ParallelismSection, "sp_attn_implementation", fallback="sdpa")

    def __post_init__(self) -> None:
        fill(self)
        if self.sp_seq_length_is_variable is None:
            self.sp_seq_length_is_variable = self.sp_seq_length is None
        name = str(self.sp_attn_implementation)
        if name not in _ATTENTIONS and "/" not in name:
            raise ConfigError(
                f"sp_attn_implementation={name!r} does not work with sequence parallelism: use one of "
                f"{', '.join(_ATTENTIONS)}, or a kernel of the hub such as kernels-community/flash-attn2."
            )


@dataclass
class TorchTensorParallelPlugin:
    """The older way to ask for tensor parallelism; ``ParallelismConfig(tp_size=...)`` replaces it."""

    tp_size: int = 1
    torch_device_mesh: DeviceMesh | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.tp_size, int) or self.tp_size < 1:
            raise ConfigError(f"tp_size={self.tp_size!r} has to be a whole number of at least 1.")


@dataclass
class ParallelismConfig:
    """Sizes of the axes of the device mesh; their product is the number of processes.

    ``dp_replicate`` copies of the model, ``dp_shard`` parts of a copy (FSDP), ``tp`` parts of each layer, and ``cp``
    or ``sp`` parts of each sequence. Fields that are None come from the launch, else they are 1. Sizes may be assigned
    until the mesh is built.
    """

    dp_replicate_size: int | None = filled(ParallelismSection, "dp_replicate_size", fallback=1)
    dp_shard_size: int | None = filled(ParallelismSection, "dp_shard_size", fallback=1)
    tp_size: int | None = filled(ParallelismSection, "tp_size", fallback=1)
    cp_size: int | None = filled(ParallelismSection, "cp_size", fallback=1)
    cp_backend: Literal["torch"] = filled(ParallelismSection, "cp_backend", fallback="torch")
    sp_size: int | None = filled(ParallelismSection, "sp_size", fallback=1)
    sp_backend: Literal["deepspeed"] = filled(ParallelismSection, "sp_backend", fallback="deepspeed")
    tp_handler: TorchTensorParallelConfig | None = None
    cp_handler: TorchContextParallelConfig | None = None
    sp_handler: DeepSpeedSequenceParallelConfig | None = None

    device_mesh = None  # set by build_device_mesh; a plain attribute, not a field

    def __post_init__(self) -> None:
        fill(self)
        for axis, size in self._sizes.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ConfigError(f"{axis}_size={size!r} has to be a whole number of at least 1.")
        if self.cp_backend != "torch":
            raise ConfigError(f"cp_backend={self.cp_backend!r} is not known: use torch.")
        if self.sp_backend != "deepspeed":
            raise ConfigError(f"sp_backend={self.sp_backend!r} is not known: use deepspeed.")
        if self.cp_enabled and self.sp_enabled:
            raise ConflictError(
                f"cp_size={self.cp_size} and sp_size={self.sp_size} both split sequences. Set one of them to 1."
            )
        if (self.tp_enabled or self.cp_enabled) and self.dp_replicate_enabled and not self.dp_shard_enabled:
            inner = f"tp_size={self.tp_size}" if self.tp_enabled else f"cp_size={self.cp_size}"
            raise ConflictError(
                f"{inner} cannot be combined with dp_replicate_size={self.dp_replicate_size} alone: copies have to be "
                "sharded too. Set dp_shard_size above 1, with dp_replicate_size as it is or 1."
            )
        self._add_handlers()

    def _add_handlers(self) -> None:
        if self.tp_enabled and self.tp_handler is None:
            self.tp_handler = TorchTensorParallelConfig()
        if self.cp_enabled and self.cp_handler is None:
            self.cp_handler = TorchContextParallelConfig()
        if self.sp_enabled and self.sp_handler is None:
            self.sp_handler = DeepSpeedSequenceParallelConfig()

    # ---- sizes

    @property
    def _sizes(self) -> dict[str, int]:
        return {axis: getattr(self, f"{axis}_size") for axis in ("dp_replicate", "dp_shard", "tp", "cp", "sp")}

    def _set_size(self, parallelism: str, size: int) -> None:
        """Sets ``<parallelism>_size``."""
        if parallelism not in self._sizes:
            raise ConfigError(f"{parallelism!r} is no axis: use {', '.join(self._sizes)}.")
        setattr(self, f"{parallelism}_size", size)

    @property
    def total_size(self) -> int:
        """The number of processes that these sizes need."""
        product = 1
        for size in self._sizes.values():
            product *= size
        return product

    @property
    def data_parallel_size(self) -> int:
        """Parts of the data that are read at the same time."""
        return self._sizes["dp_replicate"] * self._sizes["dp_shard"]

    @property
    def non_data_parallel_size(self) -> int:
        """Ranks that read the same data."""
        return self._sizes["tp"] * self._sizes["cp"] * self._sizes["sp"]

    @property
    def dp_replicate_enabled(self) -> bool:
        """Whether there are copies."""
        return self._sizes["dp_replicate"] > 1

    @property
    def dp_shard_enabled(self) -> bool:
        """Whether copies are sharded."""
        return self._sizes["dp_shard"] > 1

    @property
    def tp_enabled(self) -> bool:
        """Whether layers are split."""
        return self._sizes["tp"] > 1

    @property
    def cp_enabled(self) -> bool:
        """Whether sequences are split for context parallelism."""
        return self._sizes["cp"] > 1

    @property
    def sp_enabled(self) -> bool:
        """Whether sequences are split for sequence parallelism."""
        return self._sizes["sp"] > 1

    # ---- names of mesh axes

    @property
    def active_mesh_dims(self) -> list[str]:
        """The axes in use: those of data parallelism first."""
        return self.dp_dim_names + self.non_dp_dim_names

    def _active(self, *axes: str) -> list[str]:
        return [axis for axis in axes if self._sizes[axis] > 1]

    @property
    def dp_dim_names(self) -> list[str]:
        """The axes along which ranks read different data."""
        return self._active("dp_replicate", "dp_shard")

    @property
    def non_dp_dim_names(self) -> list[str]:
        """The axes along which ranks read the same data."""
        return self._active("tp", "cp", "sp")

    @property
    def dp_shard_cp_dim_names(self) -> list[str]:
        """The axes over which parameters are sharded."""
        return self._active("dp_shard", "cp")

    @property
    def dp_cp_dim_names(self) -> list[str]:
        """The axes over which gradients and losses are reduced."""
        return self._active("dp_replicate", "dp_shard", "cp")

    @property
    def fsdp_dim_names(self) -> list[str]:
        """The axes of the mesh that FSDP takes; ``dp_shard_cp`` stands for the sharding axes together."""
        return [*self._active("dp_replicate"), "dp_shard_cp"]

    # ---- the mesh

    def _get_mesh(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Names and sizes of the mesh's axes, outermost first."""
        names = tuple(self._active(*_ORDER))
        return names, tuple(self._sizes[name] for name in names)

    def build_device_mesh(self, device_type: str) -> DeviceMesh | None:
        """Collective. The mesh over all ranks, kept as ``device_mesh``; None where every size is 1."""
        import torch.distributed as dist

        from accelerate import mesh

        if self._get_mesh()[0]:
            world_size = dist.get_world_size() if dist.is_initialized() else 1
            self.device_mesh = mesh.build(mesh.Degrees.of(self), device_type, world_size)
        return self.device_mesh

    def get_device_mesh(self, device_type: str | None = None) -> DeviceMesh | None:
        """Collective where the mesh has to be built. The mesh; ``device_type`` is needed the first time.

        Raises:
            StateError: there is no mesh yet, and no device type either.
        """
        if self.device_mesh is None:
            if device_type is None:
                raise StateError("The mesh is not built yet: pass the device type, such as get_device_mesh('cuda').")
            return self.build_device_mesh(device_type)
        if device_type is not None and self.device_mesh.device_type != device_type:
            raise ConflictError(
                f"A mesh for {device_type!r} was asked for, but it was built for {self.device_mesh.device_type!r}."
            )
        return self.device_mesh

    def _validate_accelerator(self, accelerator: Any) -> None:
        """Checks the sizes against the job.

        Raises:
            ConfigError: the product of the sizes is not the number of processes.
        """
        self._add_handlers()
        if self.total_size == 1:
            # A launch that only says how many processes there are means plain data parallelism.
            self._set_size("dp_replicate", accelerator.num_processes)
        if self.total_size != accelerator.num_processes:
            product = " x ".join(f"{axis}_size={size}" for axis, size in self._sizes.items() if size > 1)
            raise ConfigError(
                f"{product} asks for {self.total_size} processes, and the job has {accelerator.num_processes}. "
                f"Change the sizes, or start {self.total_size} processes."
            )

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values."""
        values: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            values[item.name] = vars(value).copy() if hasattr(value, "__dataclass_fields__") else value
        return values
