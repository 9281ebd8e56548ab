"""The mesh that a parallelism configuration builds."""

from __future__ import annotations

from typing import Any

import pytest

from accelerate.config.parallelism import ParallelismConfig
from accelerate.errors import ConfigError, ConflictError
from accelerate.test_utils.world import run_world


def _mesh(rank: int, n: int) -> Any:
    config = ParallelismConfig(dp_replicate_size=2, dp_shard_size=2)
    mesh = config.build_device_mesh("cpu")
    assert mesh is not None
    assert config.get_device_mesh() is mesh
    assert config.get_device_mesh("cpu") is mesh
    sharded = mesh[tuple(config.fsdp_dim_names)]
    assert tuple(sharded.shape) == (2, 2)
    try:
        config.get_device_mesh("cuda")
    except ConflictError as error:
        return mesh.mesh_dim_names, tuple(mesh.shape), mesh.get_coordinate(), str(error)
    return None


@pytest.mark.filterwarnings("ignore:Slicing a flattened dim")  # the way in which others take the mesh
def test_axes_sizes_and_places() -> None:
    found = run_world(_mesh, 4, how="threads")
    assert [item[:2] for item in found] == [(("dp_replicate", "dp_shard"), (2, 2))] * 4
    assert [list(item[2]) for item in found] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert "it was built for 'cpu'" in found[0][3]


def _wrong(rank: int, n: int) -> str:
    try:
        ParallelismConfig(dp_shard_size=4).build_device_mesh("cpu")
    except ConfigError as error:
        return str(error)
    return ""


def test_sizes_that_do_not_make_the_job() -> None:
    for message in run_world(_wrong, 2, how="threads"):
        assert "asks for 4 processes" in message
        assert "the job has 2" in message
