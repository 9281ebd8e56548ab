"""Surroundings that are the same for every test, and guards that nothing leaks from one into the next."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator

# One thread a process: results do not depend on the machine, and a fork has no pool of threads to miss.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
for name in list(os.environ):
    if name.startswith(("ACCELERATE_", "FSDP_", "MEGATRON_LM_", "PARALLELISM_CONFIG_", "SLURM_", "OMPI_", "PMI_")):
        del os.environ[name]
for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
    os.environ.pop(name, None)

import pytest  # noqa: E402

import guards  # noqa: E402  # reads the package, which must see the environment above
from accelerate import runtime  # noqa: E402

pytest_plugins = ["pytester"]

# DeepSpeed registers a seeder with pytest-randomly, for which every session would import it.
if (plugin := sys.modules.get("pytest_randomly")) is not None:
    plugin.entrypoint_reseeds = []


@pytest.fixture(scope="session", autouse=True)
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An empty working directory and a home of its own for configuration files."""
    where = os.getcwd()
    os.environ["HF_HOME"] = str(tmp_path_factory.mktemp("hf-home"))
    os.chdir(tmp_path_factory.mktemp("cwd"))
    yield
    os.chdir(where)


@pytest.fixture(autouse=True)
def nothing_leaks(scratch: None) -> Iterator[None]:
    """Fails a test that leaves something behind, and puts it right for the next."""
    random.seed(0)
    if (torch := sys.modules.get("torch")) is not None and hasattr(torch, "manual_seed"):
        torch.manual_seed(0)
    watching = guards.watch()
    next(watching)
    yield
    left = next(watching)
    if left:
        pytest.fail("The test left behind:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture
def fresh_state() -> Iterator[None]:
    """For tests that construct an Accelerator or a state in this process: it, its group and its names go afterwards."""
    before, hook = dict(os.environ), sys.excepthook
    runtime.reset()
    yield
    sys.excepthook = hook
    runtime.reset()
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
    before["PYTEST_CURRENT_TEST"] = os.environ["PYTEST_CURRENT_TEST"]
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
