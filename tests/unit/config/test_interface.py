"""Every flag, key, variable and record of the public interface is there, as promised."""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Any

import pytest

from accelerate.cli.parser import GIVEN, build_launch_parser
from accelerate.config.run import all_settings
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import dataclasses as records

# Variables that no setting owns: places in a job, which topology reads, and what single layers read or write.
ELSEWHERE = {
    "ACCELERATE_ALLOW_CP_STANDALONE",
    "ACCELERATE_BYPASS_DEVICE_MAP",
    "ACCELERATE_CONFIG_DS_FIELDS",
    "ACCELERATE_DEBUG_RDV_FILE",
    "ACCELERATE_ENABLE_RICH",
    "ACCELERATE_INIT_INCLUDE_BUFFERS",
    "ACCELERATE_LOG_LEVEL",
    "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE",
    "ACCELERATE_TORCH_DEVICE",
    "ACCELERATE_USE_SAGEMAKER",
    "CPU_RAM_EFFICIENT_LOADING",
    "DEEPSPEED_USE_HPU",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "LOCAL_MACHINE",
    "LOCAL_STATE_DICT",
    "NODE_RANK",
    "WORLD_SIZE",
    "XLA_DOWNCAST_BF16",
    "XLA_USE_BF16",
}
PLACES = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "MPI_", "MV2_", "OMPI_", "PMI_")

# On purpose: resume is exact by default, for which the order of samples has to follow a seed.
DIFFERENT_DEFAULTS = {("DataLoaderConfiguration", "use_seedable_sampler"): True}


def test_every_flag_is_there(interface: dict[str, Any]) -> None:
    actions = {flag: action for action in build_launch_parser()._actions for flag in action.option_strings}
    for row in interface["launch"]:
        for flag in row["flags"]:
            action = actions[flag]
            assert action.dest == row["dest"], flag
            assert (action.nargs != 0) == row["takes_value"], flag


def test_attributes_and_defaults_of_a_parsed_line(interface: dict[str, Any]) -> None:
    parsed = vars(build_launch_parser().parse_args(["train.py"]))
    for row in interface["launch"]:
        if row["dest"] not in ("training_script", "training_script_args"):
            found = json.loads(json.dumps(parsed[row["dest"]]))
            assert (found, type(found)) == (row["default"], type(row["default"])), row["dest"]
    assert GIVEN not in parsed


def test_every_choice_is_taken(interface: dict[str, Any]) -> None:
    parser = build_launch_parser()
    for row in interface["launch"]:
        for word in row["choices"] or ():
            parsed = parser.parse_args([row["flags"][0], word, "train.py"])
            expected = "torchxla_trace_once" if word == "torhchxla_trace_once" else word
            assert getattr(parsed, row["dest"]) == expected


def test_every_file_key_is_a_setting(interface: dict[str, Any]) -> None:
    first = {item.yaml[0] for item in all_settings() if item.yaml}
    for name, keys in interface["file_keys"].items():
        assert set(keys) <= first, name


def test_every_variable_is_a_settings_or_known_elsewhere(interface: dict[str, Any]) -> None:
    owned = {name for item in all_settings() for name in item.environment}
    for name in interface["environment"]:
        if name.endswith("_"):
            assert any(other.startswith(name) for other in owned), name
        else:
            assert name in owned | ELSEWHERE or name.startswith(PLACES), name
    assert not owned & ELSEWHERE


def test_names_are_not_shared_by_settings() -> None:
    for names in (
        [item.path for item in all_settings()],
        [item.dest for item in all_settings()],
        [flag for item in all_settings() for flag in item.flags],
        [item.yaml for item in all_settings() if item.yaml],
        [name for item in all_settings() for name in item.environment],
    ):
        assert len(names) == len(set(names))


def test_every_setting_says_what_it_is() -> None:
    assert [item.path for item in all_settings() if not item.option.help.endswith(".")] == []


def _record(name: str) -> Any:
    from accelerate.config import records as files

    if name == "ParallelismConfig":
        return ParallelismConfig
    return getattr(files, name) if name in ("ClusterConfig", "SageMakerConfig") else getattr(records, name)


def test_records_have_the_fields_defaults_and_methods(interface: dict[str, Any]) -> None:
    for name, promised in interface["records"].items():
        found = []
        for item in dataclasses.fields(_record(name)):
            default = item.default
            if item.default_factory is not dataclasses.MISSING:
                default = "factory"
            elif default is dataclasses.MISSING:
                default = "required"
            found.append([item.name, getattr(default, "value", default)])
        expected = [[field, DIFFERENT_DEFAULTS.get((name, field), value)] for field, value in promised["fields"]]
        assert found == expected, name
        missing = [method for method in promised["methods"] if not hasattr(_record(name), method)]
        assert missing == [], name


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("DeepSpeedPlugin.fill_match", "(self, ds_key_long, mismatches=None, must_match=True, **kwargs)"),
        (
            "DeepSpeedPlugin.deepspeed_config_process",
            "(self, prefix='', mismatches=None, config=None, must_match=True, **kwargs)",
        ),
        ("DeepSpeedPlugin.get_value", "(self, ds_key_long, default=None)"),
        ("DeepSpeedPlugin.select", "(self, _from_accelerator_state=False)"),
        ("DeepSpeedPlugin.zero3_init_context_manager", "(self, enable=False)"),
        (
            "FullyShardedDataParallelPlugin.set_mixed_precision",
            "(self, mixed_precision, buffer_autocast=False, override=False)",
        ),
        ("FullyShardedDataParallelPlugin.set_state_dict_type", "(self, state_dict_type=None)"),
        ("FullyShardedDataParallelPlugin.set_auto_wrap_policy", "(self, model)"),
        (
            "DistributedDataParallelKwargs.to_dict",
            "(self, ignore_keys=('comm_hook', 'comm_wrapper', 'comm_state_option'))",
        ),
        ("MegatronLMPlugin.set_training_args", "(self, micro_batch_size, dp_degree)"),
        ("MegatronLMPlugin.set_network_size_args", "(self, model, batch_data=None)"),
        ("ProjectConfiguration.set_directories", "(self, project_dir=None)"),
        ("add_model_config_to_megatron_parser", "(model_type)"),
        ("get_module_class_from_name", "(module, name)"),
    ],
)
def test_signatures(name: str, signature: str) -> None:
    found: Any = records
    for part in name.split("."):
        found = getattr(found, part)
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(found).parameters.values()
    ]
    assert str(inspect.Signature(plain)) == signature


def test_paths_give_the_same_object() -> None:
    import accelerate.config.fsdp
    import accelerate.utils

    assert records.FullyShardedDataParallelPlugin is accelerate.config.fsdp.FullyShardedDataParallelPlugin
    assert accelerate.utils.FullyShardedDataParallelPlugin is records.FullyShardedDataParallelPlugin
    assert accelerate.utils.ParallelismConfig is ParallelismConfig
