"""What the machine is made of, from files and tools that a test can put there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from accelerate.config.enums import DistributedType
from accelerate.devices import host
from accelerate.errors import DeviceError
from accelerate.state.legacy import by_device, get_current_device_type


def test_place_in_a_cpu_job(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.get_cpu_distributed_information() == host.CPUInformation(0, 1, 0, 1)
    for name, value in {"RANK": 1, "SIZE": 2, "LOCAL_RANK": 1, "LOCAL_SIZE": 2}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", str(value))
    assert host.get_cpu_distributed_information() == host.CPUInformation(1, 2, 1, 2)


def test_processor_lists() -> None:
    assert host.parse_cpu_list("0-3,8,10-11\n") == [0, 1, 2, 3, 8, 10, 11]
    assert host.parse_cpu_list("") == []


def test_no_nvidia_tool() -> None:
    with pytest.raises(DeviceError, match="nvidia-smi was to be asked for name"):
        host.get_gpu_info()
    with pytest.raises(DeviceError, match="driver_version"):
        host.get_driver_version()
    assert host.check_cuda_p2p_ib_support() and not host.check_cuda_fp8_capability()


@pytest.mark.parametrize(
    ("names", "driver", "verdict"),
    [
        (["NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"], "535.129.03", False),
        (["NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"], "550.40", True),
        (["NVIDIA GeForce RTX 4090"], "535.1", True),
        (["NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"], "535.1", True),
    ],
)
def test_cards_that_may_not_talk(
    names: list[str], driver: str, verdict: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    listing = "\\n".join(names)
    tool.write_text(f'#!/bin/sh\ncase "$1" in *driver*) echo {driver};; *) printf "{listing}\\n";; esac\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert host.get_gpu_info() == (names, len(names)) and host.get_driver_version() == driver
    assert host.check_cuda_p2p_ib_support() is verdict


def test_a_tool_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise subprocess.CalledProcessError(9, "nvidia-smi")

    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", fails)
    with pytest.raises(DeviceError, match="asked for name and failed: .* exit status 9"):
        host.get_gpu_info()


def test_staying_near_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[Any] = []
    properties = type("Properties", (), {"pci_domain_id": 0, "pci_bus_id": 0x1A, "pci_device_id": 0})()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, processors: chosen.append(processors))
    (tmp_path / "pci" / "0000:1a:00.0").mkdir(parents=True)
    (tmp_path / "pci" / "0000:1a:00.0" / "numa_node").write_text("1\n")
    (tmp_path / "nodes" / "node1").mkdir(parents=True)
    (tmp_path / "nodes" / "node1" / "cpulist").write_text("4-7\n")
    monkeypatch.setattr(host, "_PCI", tmp_path / "pci")
    monkeypatch.setattr(host, "_NODES", tmp_path / "nodes")
    host._node_of.cache_clear()
    host.set_numa_affinity(0)
    assert chosen == []  # not asked for
    monkeypatch.setenv("ACCELERATE_CPU_AFFINITY", "1")
    host.set_numa_affinity(0)
    assert chosen == [[4, 5, 6, 7]]
    host._node_of.cache_clear()


def test_no_gpu_to_stay_near() -> None:
    host._node_of.cache_clear()
    before = os.sched_getaffinity(0)
    host.override_numa_affinity(0, verbose=True)
    assert os.sched_getaffinity(0) == before


def test_the_name_of_data_parallelism() -> None:
    assert get_current_device_type() == ("cuda", "MULTI_GPU")
    assert by_device("npu") is DistributedType.MULTI_NPU
    assert by_device("cpu") is DistributedType.MULTI_CPU
    assert by_device("cuda") is by_device("abacus") is DistributedType.MULTI_GPU
