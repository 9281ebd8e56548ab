"""Degrees → axes → a mesh, and what is read off it."""

from __future__ import annotations

from typing import Any

import pytest

from accelerate.errors import ConfigError, TopologyError
from accelerate.mesh import Degrees, build, coordinate, data_position, sharding_mesh, simple_mesh
from accelerate.test_utils.world import RanksFailedError, run_world


def on_mesh(degrees: Degrees, read: Any, n: int) -> list[Any]:
    return run_world(lambda rank, n: read(build(degrees, "cpu", n)), n)


def test_degrees() -> None:
    degrees = Degrees(dp_replicate=2, cp=2, tp=3)
    assert degrees.total == 12
    assert list(degrees.active) == ["dp_replicate", "cp", "tp"]
    assert Degrees.of(type("Config", (), {"dp_shard_size": 4, "tp_size": None})()) == Degrees(dp_shard=4)


@pytest.mark.filterwarnings("ignore:Slicing a flattened dim")  # torch's plan for a later release
def test_axes_and_flattened_names() -> None:
    def read(mesh: Any) -> Any:
        return mesh.mesh_dim_names, mesh["dp"].size(), mesh["dp_shard_cp"].size(), mesh["dp_cp"].size()

    found = on_mesh(Degrees(dp_replicate=2, dp_shard=2, cp=2), read, 8)
    assert found == [(("dp_replicate", "dp_shard", "cp"), 4, 4, 8)] * 8


def test_peers_along_cp_and_tp_read_the_same_data() -> None:
    found = on_mesh(Degrees(dp_replicate=2, dp_shard=2, tp=2), data_position, 8)
    assert found == [(4, 0), (4, 0), (4, 1), (4, 1), (4, 2), (4, 2), (4, 3), (4, 3)]
    assert on_mesh(Degrees(dp_shard=2, cp=2), data_position, 4) == [(2, 0), (2, 0), (2, 1), (2, 1)]
    assert on_mesh(Degrees(tp=2), data_position, 2) == [(1, 0), (1, 0)]
    assert on_mesh(Degrees(dp_shard=2, tp=2), lambda mesh: coordinate(mesh, ("tp",)), 4) == [
        (2, 0), (2, 1), (2, 0), (2, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("degrees", "n", "shape"),
    [
        (Degrees(dp_shard=4), 4, (4,)),
        (Degrees(dp_replicate=2, dp_shard=2), 4, (2, 2)),
        (Degrees(dp_shard=2, cp=2), 4, (4,)),
        (Degrees(dp_replicate=2, dp_shard=2, cp=2), 8, (2, 4)),
        (Degrees(dp_shard=2, tp=2), 4, (2,)),
        (Degrees(cp=2), 2, (2,)),
    ],
    ids=str,
)
def test_what_parameters_are_sharded_over(degrees: Degrees, n: int, shape: tuple[int, ...]) -> None:
    found = on_mesh(degrees, lambda mesh: tuple(sharding_mesh(mesh).mesh.shape), n)
    assert found == [shape] * n


def test_nothing_to_shard_over() -> None:
    with pytest.raises(RanksFailedError) as failed:
        on_mesh(Degrees(tp=2), sharding_mesh, 2)
    assert isinstance(failed.value.__cause__, ConfigError)
    assert "Set dp_shard_size" in str(failed.value)


def test_degrees_that_do_not_make_the_job() -> None:
    with pytest.raises(RanksFailedError, match="asks for 4 processes .*the job has 2"):
        on_mesh(Degrees(dp_shard=4), lambda mesh: None, 2)


def test_groups_of_neighbours() -> None:
    found = run_world(lambda rank, n: simple_mesh("cpu", n, 2).get_coordinate(), 4)
    assert [tuple(place) for place in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    with pytest.raises(TopologyError, match="no multiple of it"):
        simple_mesh("cpu", 4, 3)
