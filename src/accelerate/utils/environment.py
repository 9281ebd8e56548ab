"""Environment and host, under the path that others import them from."""

from __future__ import annotations

from accelerate import lazy

HOMES = {
    "accelerate.devices.host": (
        "CPUInformation check_cuda_fp8_capability check_cuda_p2p_ib_support get_cpu_distributed_information "
        "get_gpu_info override_numa_affinity set_numa_affinity"
    ),
    "accelerate.state.legacy": "get_current_device_type",
    "accelerate.env": (
        "are_libraries_initialized clear_environment convert_dict_to_env_variables get_int_from_env "
        "parse_choice_from_env parse_flag_from_env patch_environment purge_accelerate_environment str_to_bool"
    ),
}

__getattr__, __dir__, __all__ = lazy.attach(__name__, lazy.by_name(HOMES))
