"""Sizes of the mesh and the names that follow from them."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from accelerate.config.parallelism import (
    DeepSpeedSequenceParallelConfig,
    ParallelismConfig,
    TorchContextParallelConfig,
    TorchTensorParallelConfig,
    TorchTensorParallelPlugin,
)
from accelerate.errors import ConfigError, ConflictError, StateError


def test_every_size_is_1_by_default() -> None:
    config = ParallelismConfig()
    assert set(config._sizes.values()) == {1}
    assert (config.cp_backend, config.sp_backend) == ("torch", "deepspeed")
    assert (config.tp_handler, config.cp_handler, config.sp_handler) == (None, None, None)
    assert (config.total_size, config.active_mesh_dims, config.fsdp_dim_names) == (1, [], ["dp_shard_cp"])
    assert config._get_mesh() == ((), ())


CASES: list[tuple[dict[str, int], dict[str, Any]]] = [
    (
        {"tp_size": 2},
        {"active_mesh_dims": ["tp"], "data_parallel_size": 1, "non_data_parallel_size": 2, "non_dp_dim_names": ["tp"]},
    ),
    (
        {"dp_replicate_size": 2, "dp_shard_size": 4},
        {
            "active_mesh_dims": ["dp_replicate", "dp_shard"],
            "data_parallel_size": 8,
            "dp_cp_dim_names": ["dp_replicate", "dp_shard"],
            "dp_shard_cp_dim_names": ["dp_shard"],
            "fsdp_dim_names": ["dp_replicate", "dp_shard_cp"],
        },
    ),
    (
        {"dp_shard_size": 2, "cp_size": 2, "tp_size": 3},
        {
            "active_mesh_dims": ["dp_shard", "tp", "cp"],
            "data_parallel_size": 2,
            "non_data_parallel_size": 6,
            "total_size": 12,
            "dp_cp_dim_names": ["dp_shard", "cp"],
            "dp_shard_cp_dim_names": ["dp_shard", "cp"],
            "dp_dim_names": ["dp_shard"],
            "fsdp_dim_names": ["dp_shard_cp"],
            "non_dp_dim_names": ["tp", "cp"],
        },
    ),
    (
        {"dp_replicate_size": 2, "sp_size": 2},
        {"active_mesh_dims": ["dp_replicate", "sp"], "data_parallel_size": 2, "non_data_parallel_size": 2},
    ),
]


@pytest.mark.parametrize(("sizes", "expected"), CASES)
def test_names_and_products(sizes: dict[str, int], expected: dict[str, Any]) -> None:
    config = ParallelismConfig(**sizes)
    assert {name: getattr(config, name) for name in expected} == expected
    for axis in ("dp_replicate", "dp_shard", "tp", "cp", "sp"):
        assert getattr(config, f"{axis}_enabled") is (sizes.get(f"{axis}_size", 1) > 1)


def test_the_mesh_runs_from_copies_to_layers() -> None:
    config = ParallelismConfig(dp_replicate_size=2, dp_shard_size=3, cp_size=4, tp_size=5)
    assert config._get_mesh() == (("dp_replicate", "dp_shard", "cp", "tp"), (2, 3, 4, 5))


def test_sizes_may_be_assigned() -> None:
    config = ParallelismConfig(dp_shard_size=2)
    config.tp_size = 4
    config._set_size("cp", 2)
    assert (config.total_size, config.cp_size) == (16, 2)
    with pytest.raises(ConfigError, match="'ep' is no axis"):
        config._set_size("ep", 2)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"tp_size": 0}, ConfigError, "tp_size=0 has to be a whole number of at least 1"),
        ({"tp_size": 2.5}, ConfigError, "tp_size=2.5"),
        ({"cp_size": 2, "sp_size": 2}, ConflictError, "cp_size=2 and sp_size=2 both split sequences"),
        ({"dp_replicate_size": 2, "tp_size": 2}, ConflictError, "tp_size=2 .* dp_replicate_size=2"),
        ({"dp_replicate_size": 2, "cp_size": 2}, ConflictError, "cp_size=2 .* dp_replicate_size=2"),
        ({"cp_backend": "ring"}, ConfigError, "cp_backend='ring' is not known: use torch"),
        ({"sp_backend": "torch"}, ConfigError, "use deepspeed"),
    ],
)
def test_what_cannot_be(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ParallelismConfig(**given)


def test_from_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "DP_SHARD_SIZE": "2",
        "TP_SIZE": "2",
        "CP_SIZE": "2",
        "CP_COMM_STRATEGY": "alltoall",
    }.items():
        monkeypatch.setenv(f"PARALLELISM_CONFIG_{name}", value)
    config = ParallelismConfig(dp_shard_size=4)
    assert (config.dp_shard_size, config.tp_size, config.cp_size) == (4, 2, 2)
    assert config.cp_handler == TorchContextParallelConfig("alltoall")
    assert config.tp_handler == TorchTensorParallelConfig()


def test_sequence_parallel_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DeepSpeedSequenceParallelConfig().sp_seq_length_is_variable is True
    assert DeepSpeedSequenceParallelConfig(sp_seq_length=8).sp_seq_length_is_variable is False
    assert DeepSpeedSequenceParallelConfig(sp_attn_implementation="owner/kernel").sp_attn_implementation
    monkeypatch.setenv("PARALLELISM_CONFIG_SP_SEQ_LENGTH", "32")
    monkeypatch.setenv("PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE", "true")
    handler = ParallelismConfig(sp_size=2).sp_handler
    assert handler == DeepSpeedSequenceParallelConfig(32, True, "sdpa")
    with pytest.raises(ConfigError, match="'eager' does not work with sequence parallelism"):
        DeepSpeedSequenceParallelConfig(sp_attn_implementation="eager")
    with pytest.raises(ConfigError, match="use allgather or alltoall"):
        TorchContextParallelConfig("ring")


def test_the_older_plugin() -> None:
    assert TorchTensorParallelPlugin(2).tp_size == 2
    with pytest.raises(ConfigError, match="tp_size=0"):
        TorchTensorParallelPlugin(0)


def test_sizes_against_the_job() -> None:
    ParallelismConfig(dp_shard_size=2, tp_size=2)._validate_accelerator(SimpleNamespace(num_processes=4))
    with pytest.raises(ConfigError, match="dp_shard_size=2 x tp_size=2 asks for 4 processes, and the job has 2"):
        ParallelismConfig(dp_shard_size=2, tp_size=2)._validate_accelerator(SimpleNamespace(num_processes=2))
    plain = ParallelismConfig()
    plain._validate_accelerator(SimpleNamespace(num_processes=2))
    assert plain.dp_replicate_size == 2


def test_a_mesh_needs_a_device_type() -> None:
    with pytest.raises(StateError, match="pass the device type"):
        ParallelismConfig(tp_size=2).get_device_mesh()
    assert ParallelismConfig().build_device_mesh("cpu") is None


def test_plain_values_and_pickles() -> None:
    config = ParallelismConfig(dp_shard_size=2, cp_size=2)
    assert config.to_json()["cp_handler"] == {"cp_comm_strategy": "allgather"}
    assert config.to_json()["dp_shard_size"] == 2
    assert pickle.loads(pickle.dumps(config)) == config
