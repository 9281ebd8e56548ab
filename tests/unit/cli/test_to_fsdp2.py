"""Configuration files for FSDP1 as files for FSDP2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from accelerate.cli.main import main
from accelerate.cli.to_fsdp2 import converted
from accelerate.config.files import read_config_file
from accelerate.errors import ConfigError

OLD = {
    "fsdp_activation_checkpointing": False,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_backward_prefetch": "BACKWARD_PRE",
    "fsdp_cpu_ram_efficient_loading": True,
    "fsdp_forward_prefetch": False,
    "fsdp_offload_params": True,
    "fsdp_sharding_strategy": "FULL_SHARD",
    "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    "fsdp_sync_module_states": True,
    "fsdp_transformer_layer_cls_to_wrap": "BertLayer",
    "fsdp_use_orig_params": True,
}


def file_for(**fsdp: Any) -> dict[str, Any]:
    return {"distributed_type": "FSDP", "num_processes": 4, "fsdp_config": fsdp}


def test_what_fsdp2_has_stays_and_the_rest_is_named() -> None:
    found, notes = converted(file_for(**OLD))
    assert found == {
        "distributed_type": "FSDP",
        "num_processes": 4,
        "fsdp_config": {
            "fsdp_activation_checkpointing": False,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_offload_params": True,
            "fsdp_reshard_after_forward": True,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            "fsdp_transformer_layer_cls_to_wrap": "BertLayer",
            "fsdp_version": 2,
        },
    }
    gone = {note.split()[0] for note in notes}
    assert gone == {
        "fsdp_backward_prefetch",
        "fsdp_forward_prefetch",
        "fsdp_sync_module_states",
        "fsdp_use_orig_params",
    }


@pytest.mark.parametrize(
    ("word", "reshard", "noted"),
    [
        ("FULL_SHARD", True, False),
        ("SHARD_GRAD_OP", False, False),
        ("HYBRID_SHARD", True, True),
        ("HYBRID_SHARD_ZERO2", False, True),
        ("2", False, False),
        (1, True, False),
    ],
)
def test_ways_of_sharding(word: object, reshard: bool, noted: bool) -> None:
    found, notes = converted(file_for(fsdp_sharding_strategy=word))
    assert found["fsdp_config"] == {"fsdp_reshard_after_forward": reshard, "fsdp_version": 2}
    assert bool(notes) is noted


def test_a_local_state_becomes_a_sharded_one() -> None:
    found, notes = converted(file_for(fsdp_state_dict_type="LOCAL_STATE_DICT"))
    assert found["fsdp_config"]["fsdp_state_dict_type"] == "SHARDED_STATE_DICT"
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (file_for(fsdp_sharding_strategy="NO_SHARD"), "MULTI_GPU"),
        (file_for(fsdp_sharding_strategy="3"), "NO_SHARD"),
        (file_for(fsdp_version=2), "FSDP2 already"),
        ({"distributed_type": "MULTI_GPU"}, "distributed_type: MULTI_GPU"),
    ],
)
def test_what_cannot_be_converted(raw: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        converted(raw)


def test_the_command_writes_a_file_that_launches_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "one.yaml", tmp_path / "two.yaml"
    source.write_text(yaml.safe_dump(file_for(**OLD)))
    before = source.read_text()
    assert main(["to-fsdp2", "--config_file", str(source)]) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert main(["to-fsdp2", "--config_file", str(source), "--output_file", str(target)]) == 0
    assert source.read_text() == before
    assert read_config_file(target).values["fsdp.version"].value == 2
    assert main(["to-fsdp2", "--config_file", str(source), "--overwrite"]) == 0
    assert yaml.safe_load(source.read_text()) == yaml.safe_load(target.read_text())
    assert main(["to-fsdp2", "--config_file", str(source), "--overwrite"]) == 1
    assert f"{source} cannot be converted. It is for FSDP2 already" in capsys.readouterr().err
