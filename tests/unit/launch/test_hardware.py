"""Devices found by what the machine shows, without torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelerate.launch import hardware
from accelerate.launch.hardware import Devices, detect

KFD = "/sys/class/kfd/kfd/topology/nodes"


class Machine:
    """Stands in for /dev and /sys."""

    def __init__(self, files: dict[str, str], torch: set[str]) -> None:
        self.files, self.torch = files, torch

    def list(self, folder: str) -> list[str]:
        prefix = folder + "/"
        return sorted({path[len(prefix) :].split("/")[0] for path in self.files if path.startswith(prefix)})

    def read(self, path: str) -> str:
        return self.files.get(path, "")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine({}, {"version:cuda"})
    monkeypatch.setattr(hardware, "_list", made.list)
    monkeypatch.setattr(hardware, "_read", made.read)
    monkeypatch.setattr(hardware, "_torch_supports", lambda what: what in made.torch)
    return made


def test_a_machine_without_devices(machine: Machine) -> None:
    assert detect({}) == Devices()


def test_nvidia_devices_are_counted_by_their_nodes(machine: Machine) -> None:
    machine.files = dict.fromkeys(["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"], "")
    assert detect({}) == Devices(type="cuda", count=2, visible_env="CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(("visible", "count"), [("0", 1), ("1,0", 2), ("GPU-5a,GPU-7c", 2), ("0,-1,1", 1)])
def test_only_visible_devices_count(machine: Machine, visible: str, count: int) -> None:
    machine.files = dict.fromkeys([f"/dev/nvidia{index}" for index in range(4)], "")
    assert detect({"CUDA_VISIBLE_DEVICES": visible}).count == count


@pytest.mark.parametrize("visible", ["", "-1"])
def test_hidden_devices_are_none_and_it_is_said_why(machine: Machine, visible: str) -> None:
    machine.files = {"/dev/nvidia0": ""}
    found = detect({"CUDA_VISIBLE_DEVICES": visible})
    assert found.count == 0 and found.type == "cpu"
    assert found.why_none == f"CUDA_VISIBLE_DEVICES={visible} hides every device"


def test_a_device_that_torch_was_built_without_is_none(machine: Machine) -> None:
    machine.files = {"/dev/nvidia0": ""}
    machine.torch = set()
    assert detect({}) == Devices(why_none="1 NVIDIA device found, but torch here is built without")


def test_amd_devices_are_the_nodes_with_compute_units(machine: Machine) -> None:
    machine.torch = {"version:hip"}
    machine.files = {
        f"{KFD}/0/properties": "cpu_cores_count 64\nsimd_count 0\n",
        f"{KFD}/1/properties": "cpu_cores_count 0\nsimd_count 304\n",
        f"{KFD}/2/properties": "cpu_cores_count 0\nsimd_count 304\n",
    }
    assert detect({}) == Devices(type="cuda", count=2, visible_env="HIP_VISIBLE_DEVICES")
    assert detect({"CUDA_VISIBLE_DEVICES": "1"}).count == 1


@pytest.mark.parametrize(
    ("node", "support", "kind", "variable"),
    [
        ("/dev/davinci3", "package:torch_npu", "npu", "ASCEND_RT_VISIBLE_DEVICES"),
        ("/dev/accel/accel0", "package:habana_frameworks", "hpu", "HABANA_VISIBLE_MODULES"),
        ("/dev/cambricon_dev0", "package:torch_mlu", "mlu", "MLU_VISIBLE_DEVICES"),
        ("/dev/mtgpu.0", "package:torch_musa", "musa", "MUSA_VISIBLE_DEVICES"),
        ("/dev/tcaicard0", "package:torch_sdaa", "sdaa", "SDAA_VISIBLE_DEVICES"),
        ("/dev/neuron0", "package:torch_neuronx", "neuron", "NEURON_RT_VISIBLE_CORES"),
    ],
)
def test_other_vendors(machine: Machine, node: str, support: str, kind: str, variable: str) -> None:
    machine.files, machine.torch = {node: "", "/dev/davinci_manager": ""}, {support}
    assert detect({}) == Devices(type=kind, count=1, visible_env=variable)


def test_intel_devices_count_by_vendor_where_torch_has_xpu(machine: Machine) -> None:
    machine.files = {
        "/sys/class/drm/renderD128/device/vendor": "0x8086\n",
        "/sys/class/drm/renderD129/device/vendor": "0x10de\n",
        "/sys/class/drm/card0/device/vendor": "0x8086\n",
    }
    machine.torch = {"version:xpu"}
    assert detect({}) == Devices(type="xpu", count=1, visible_env="ZE_AFFINITY_MASK")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__version__ = '2.13.0'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n", False),
        ("__version__ = '2.13.0'\ncuda: Optional[str] = '12.8'\n", True),
        ("cuda = '12.8'\n", True),
        ("cuda = None\n", False),
    ],
)
def test_what_torch_was_built_with_is_read_from_its_version_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, expected: bool
) -> None:
    (tmp_path / "version.py").write_text(text)
    monkeypatch.setattr("accelerate.optional.folder_of", lambda name: tmp_path if name == "torch" else None)
    assert hardware._torch_supports("version:cuda") is expected
    assert hardware._torch_supports("package:torch_npu") is False


def test_cores_of_this_machine() -> None:
    assert 1 <= hardware.physical_cores() <= hardware.usable_cores()
