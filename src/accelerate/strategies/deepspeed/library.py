"""DeepSpeed itself: imported for the device in use, joined to the group there is, and what of it is built here."""

from __future__ import annotations

import sys
import warnings
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from accelerate import env
from accelerate.errors import TopologyError
from accelerate.optional import require

if TYPE_CHECKING:
    from accelerate.runtime import Runtime

__all__ = ["built", "connect", "disconnect", "load"]

_SHARED_MEMORY = "deepspeed_shm_comm"


def load(device_type: str) -> Any:
    """The ``deepspeed`` module, set to work on this kind of device.

    Raises:
        MissingPackageError: it is not installed.
    """
    require("deepspeed", "DeepSpeed training")
    if "deepspeed" not in sys.modules and device_type == "cpu" and env.get("DS_ACCELERATOR") is None:
        # Read once, when the library is imported: left alone it takes any GPU that it sees.
        env.put("DS_ACCELERATOR", "cpu")
    # It calls collectives of torch by names that newer releases of torch warn about, once for every call.
    warnings.filterwarnings("ignore", message=r".torch\.distributed\.\w+_tensor. is deprecated", category=FutureWarning)
    library = import_module("deepspeed")
    _use_device(device_type)
    return library


def _use_device(device_type: str) -> None:
    accelerator = import_module("deepspeed.accelerator")
    if device_type == "cpu" and accelerator.get_accelerator().device_name() != "cpu":
        accelerator.set_accelerator(import_module("deepspeed.accelerator.cpu_accelerator").CPU_Accelerator())


def connect(runtime: Runtime) -> Any:
    """Collective the first time. Lets DeepSpeed use the job's process group; returns the ``deepspeed`` module.

    Raises:
        TopologyError: several processes have no group in common.
    """
    library = load(runtime.device.type)
    if not dist.is_initialized():
        raise TopologyError(
            f"DeepSpeed was asked for in a job of {runtime.topology.world_size} processes without a process group. "
            "Construct Accelerator() before anything that closes the group."
        )
    if env.get("LOCAL_RANK") is None:
        env.put("LOCAL_RANK", runtime.topology.local_rank)
    if runtime.device.type == "cpu":
        _skip_shared_memory()
    comm = import_module("deepspeed.comm")
    if not comm.is_initialized():
        comm.init_distributed(dist_backend=runtime.comm_backend or dist.get_backend(), auto_mpi_discovery=False)
    return library


def disconnect() -> None:
    """Lets go of the process group, which is about to be closed."""
    comm: Any = import_module("deepspeed.comm.comm")
    comm.cdb = None
    groups = import_module("deepspeed.utils.groups")
    for name in ("_WORLD_GROUP", "_ZERO_PARAM_INTRA_PARALLEL_GROUP", "mesh_device"):
        if hasattr(groups, name):
            setattr(groups, name, None)


def _skip_shared_memory() -> None:
    """The operator for shared memory is compiled when a group is opened, which takes minutes; gloo does without."""
    if not built("shm_comm"):
        import_module("deepspeed.ops").__compatible_ops__[_SHARED_MEMORY] = False


@cache
def built(operator: str) -> bool:
    """Whether one of DeepSpeed's compiled operators is there already, installed or from an earlier compilation."""
    from pathlib import Path

    if import_module("deepspeed.git_version_info").installed_ops.get(operator, False):
        return True
    cpp = import_module("torch.utils.cpp_extension")
    base = env.get("TORCH_EXTENSIONS_DIR")
    root = Path(base) if base else Path(cpp.get_default_build_root())
    version = sys.version_info
    folder = f"py{version.major}{version.minor}{getattr(sys, 'abiflags', '')}_{_toolkit()}"
    places = (root / operator, root / folder / operator)
    return any((place / f"{operator}.so").is_file() and not (place / "lock").exists() for place in places)


def _toolkit() -> str:
    cuda = torch.version.cuda
    return "cpu" if cuda is None else f"cu{cuda.replace('.', '')}"
