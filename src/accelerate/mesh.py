"""Parallel degrees → named axes → one DeviceMesh over the whole job, and what can be read off such a mesh.

Axes run from the outermost, whose peers are far apart, to the innermost, whose peers talk most:
``dp_replicate`` (copies of the sharded model), ``dp_shard`` (parts of the model), ``cp`` (parts of a sequence in
attention), ``sp`` (parts of a sequence by heads), ``tp`` (parts of a layer).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from accelerate.errors import ConfigError, TopologyError

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["AXES", "Degrees", "build", "coordinate", "data_position", "group_of", "sharding_mesh", "simple_mesh"]

AXES = ("dp_replicate", "dp_shard", "cp", "sp", "tp")
_FLATTENED = {
    "dp": ("dp_replicate", "dp_shard"),
    "dp_shard_cp": ("dp_shard", "cp"),
    "dp_cp": ("dp_replicate", "dp_shard", "cp"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """How many ways each axis divides the job; 1 means that the axis is not used."""

    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    sp: int = 1
    tp: int = 1

    @classmethod
    def of(cls, config: Any) -> Degrees:
        """The degrees of a ``ParallelismConfig``."""
        return cls(**{axis: getattr(config, f"{axis}_size", None) or 1 for axis in AXES})

    @property
    def total(self) -> int:
        """The number of ranks that these degrees need."""
        product = 1
        for axis in AXES:
            product *= getattr(self, axis)
        return product

    @property
    def active(self) -> dict[str, int]:
        """Axis → degree for the axes in use, outermost first."""
        return {axis: getattr(self, axis) for axis in AXES if getattr(self, axis) > 1}


def build(degrees: Degrees, device_type: str, world_size: int) -> DeviceMesh:
    """Collective. The mesh over all ranks, with the axes in use and the flattened names "dp", "dp_shard_cp", "dp_cp".

    Raises:
        ConfigError: the degrees do not multiply to ``world_size``.
    """
    from torch.distributed.device_mesh import init_device_mesh

    active = degrees.active or {"dp_shard": 1}
    if degrees.total != world_size:
        product = " x ".join(f"{axis}_size={size}" for axis, size in active.items())
        raise ConfigError(
            f"The parallelism configuration asks for {degrees.total} processes ({product}), but the job has "
            f"{world_size}. Change the sizes, or start {degrees.total} processes."
        )
    mesh = init_device_mesh(device_type, tuple(active.values()), mesh_dim_names=tuple(active))
    for name, axes in _FLATTENED.items():
        present = tuple(axis for axis in axes if axis in active)
        if present:
            _flatten(mesh, present, name)
    return mesh


def _flatten(mesh: DeviceMesh, axes: tuple[str, ...], name: str) -> DeviceMesh:
    return mesh[axes if len(axes) > 1 else axes[0]]._flatten(name)


def simple_mesh(device_type: str, world_size: int, shard_size: int | None = None) -> DeviceMesh:
    """Collective. A mesh for sharding over the whole job, or over groups of ``shard_size`` neighbours that hold copies.

    Raises:
        TopologyError: ``world_size`` is no multiple of ``shard_size``.
    """
    from torch.distributed.device_mesh import init_device_mesh

    if shard_size is None or shard_size == world_size:
        return init_device_mesh(device_type, (world_size,), mesh_dim_names=("dp_shard",))
    if shard_size < 1 or world_size % shard_size:
        raise TopologyError(
            f"The model should be sharded over groups of {shard_size} ranks, but the job has {world_size} ranks, which "
            f"is no multiple of it. Start the same number of processes on every machine."
        )
    return init_device_mesh(
        device_type, (world_size // shard_size, shard_size), mesh_dim_names=("dp_replicate", "dp_shard")
    )


def _names(mesh: DeviceMesh) -> tuple[str, ...]:
    return tuple(mesh.mesh_dim_names or ())


def sharding_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The part of a job's mesh that parameters are sharded over: one axis, or copies x shards.

    Context parallel peers hold shards too, since they run the same weights on other parts of the sequence.

    Raises:
        ConfigError: the mesh has no axis to shard over.
    """
    names = _names(mesh)
    shard = tuple(axis for axis in ("dp_shard", "cp") if axis in names)
    if not shard:
        raise ConfigError(
            f"FSDP was asked for, but the parallelism configuration has only the axes {list(names)}, so there is "
            "nothing to shard over. Set dp_shard_size to the number of shards, or leave FSDP out."
        )
    name: str = shard[0]
    if len(shard) > 1:
        name = "dp_shard_cp"
        flat = _flatten(mesh, shard, name)
        if "dp_replicate" not in names:
            return flat
    if "dp_replicate" not in names:
        return mesh if len(names) == 1 else mesh[name]
    with warnings.catch_warnings():
        # The flattened axis has to come from the same root as a tensor parallel axis, which only slicing gives.
        warnings.filterwarnings("ignore", message="Slicing a flattened dim")
        return mesh["dp_replicate", name]


def coordinate(mesh: DeviceMesh, axes: Iterable[str]) -> tuple[int, int]:
    """(count, index) of this rank's place among the combinations of ``axes``; axes not in the mesh count once."""
    names, count, index = _names(mesh), 1, 0
    for axis in axes:
        if axis in names:
            size = mesh.size(names.index(axis))
            count, index = count * size, index * size + mesh.get_local_rank(axis)
    return count, index


def data_position(mesh: DeviceMesh) -> tuple[int, int]:
    """(count, index): which of how many parts of the data this rank reads. Peers along cp, sp and tp share a part."""
    return coordinate(mesh, ("dp_replicate", "dp_shard"))


def group_of(mesh: DeviceMesh, axis: int) -> torch.distributed.ProcessGroup:
    """The process group of this rank along the ``axis``-th axis."""
    return mesh.get_group(axis)
