"""Which devices this machine shows, found without importing torch, so that a launch can be planned at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["NO_DEVICES", "Devices", "detect", "physical_cores", "usable_cores"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The accelerators of this machine that a process may use: their torch type, how many, and the variable that
    chooses among them. ``why_none`` says why a device that is there cannot be used."""

    type: str = "cpu"
    count: int = 0
    visible_env: str | None = None
    why_none: str = ""


NO_DEVICES = Devices()


def _list(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _nodes(prefix: str) -> Callable[[], int]:
    """Counts the device nodes that are ``prefix`` and a number."""
    folder, _, name = prefix.rpartition("/")
    return lambda: sum(entry.startswith(name) and entry[len(name) :].isdigit() for entry in _list(folder))


_nvidia_nodes = _nodes("/dev/nvidia")


def _nvidia() -> int:
    # On Windows and under WSL there are no device nodes, only the management library.
    return _nvidia_nodes() or (_nvml() if os.name == "nt" or os.path.exists("/dev/dxg") else 0)


def _nvml() -> int:
    import ctypes

    try:
        library = ctypes.CDLL("nvml.dll" if os.name == "nt" else "libnvidia-ml.so.1")
        count = ctypes.c_uint()
        usable = library.nvmlInit_v2() == 0 and library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
    except (OSError, AttributeError):
        return 0
    return count.value if usable else 0


def _amd() -> int:
    found = 0
    folder = "/sys/class/kfd/kfd/topology/nodes"
    for node in _list(folder):
        words = dict(
            line.split(maxsplit=1) for line in _read(f"{folder}/{node}/properties").splitlines() if " " in line
        )
        found += int(words.get("simd_count", "0")) > 0
    return found


def _intel() -> int:
    folder = "/sys/class/drm"
    cards = [entry for entry in _list(folder) if entry.startswith("renderD")]
    return sum(_read(f"{folder}/{card}/device/vendor").strip() == "0x8086" for card in cards)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


# Torch's name of the device; who makes it; how its devices are counted; the variable that chooses among them; the
# line of torch/version.py that is None in a torch built without it (or the package that brings the device to torch).
_VENDORS: tuple[tuple[str, str, Callable[[], int], str, str], ...] = (
    ("cuda", "NVIDIA", _nvidia, "CUDA_VISIBLE_DEVICES", "version:cuda"),
    ("cuda", "AMD", _amd, "HIP_VISIBLE_DEVICES", "version:hip"),
    ("npu", "Ascend", _nodes("/dev/davinci"), "ASCEND_RT_VISIBLE_DEVICES", "package:torch_npu"),
    ("hpu", "Gaudi", _nodes("/dev/accel/accel"), "HABANA_VISIBLE_MODULES", "package:habana_frameworks"),
    ("mlu", "Cambricon", _nodes("/dev/cambricon_dev"), "MLU_VISIBLE_DEVICES", "package:torch_mlu"),
    ("musa", "Moore Threads", _nodes("/dev/mtgpu."), "MUSA_VISIBLE_DEVICES", "package:torch_musa"),
    ("sdaa", "Tecorigin", _nodes("/dev/tcaicard"), "SDAA_VISIBLE_DEVICES", "package:torch_sdaa"),
    ("neuron", "Neuron", _nodes("/dev/neuron"), "NEURON_RT_VISIBLE_CORES", "package:torch_neuronx"),
    ("xpu", "Intel", _intel, "ZE_AFFINITY_MASK", "version:xpu"),
)


def _torch_supports(what: str) -> bool:
    # Only where a device was found: it is the slow part, and no other module of a launch needs it.
    from accelerate.optional import folder_of

    kind, _, name = what.partition(":")
    if kind == "package":
        return folder_of(name) is not None
    folder = folder_of("torch")
    if folder is None:
        return False
    for line in _read(str(folder / "version.py")).splitlines():
        if line.partition(":")[0].partition("=")[0].strip() == name:
            return line.rpartition("=")[2].strip() != "None"
    return True


def detect(environ: Mapping[str, str]) -> Devices:
    """The first kind of device that this machine and the installed torch both have, limited to the visible ones."""
    reason = ""
    for kind, vendor, count, variable, support in _VENDORS:
        present = count()
        if not present:
            continue
        if not _torch_supports(support):
            reason = reason or f"{present} {vendor} device{'s' * (present > 1)} found, but torch here is built without"
            continue
        visible = environ.get(variable, environ.get("CUDA_VISIBLE_DEVICES") if kind == "cuda" else None)
        if visible is None:
            return Devices(type=kind, count=present, visible_env=variable)
        chosen = 0
        for word in visible.split(","):
            if word.strip() in ("", "-1"):
                break
            chosen += 1
        if chosen:
            return Devices(type=kind, count=chosen, visible_env=variable)
        reason = f"{variable}={visible} hides every device"
    return Devices(why_none=reason)


def physical_cores() -> int:
    """Cores that this process may use, two hardware threads of one core counted once."""
    import psutil

    logical = usable_cores()
    return min(logical, psutil.cpu_count(logical=False) or logical)


def usable_cores() -> int:
    """Hardware threads that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
