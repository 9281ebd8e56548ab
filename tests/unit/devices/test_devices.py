"""The table of devices, the choice among them, and what a row becomes on a machine that has the device."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from accelerate import devices
from accelerate.devices import memory, probes, registry
from accelerate.devices.cpu import CpuBackend
from accelerate.devices.vendor import ROWS, Row, VendorBackend
from accelerate.errors import DeviceError


class FakeModule(types.SimpleNamespace):
    """A vendor's part of torch, as ``torch.npu`` would be."""

    def __init__(self) -> None:
        super().__init__(current=None, emptied=0, peak_reset=None, seed=None)
        self.states = [torch.tensor([1], dtype=torch.uint8), torch.tensor([2], dtype=torch.uint8)]

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 2

    def set_device(self, device: torch.device) -> None:
        self.current = device.index

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return self.states

    def set_rng_state_all(self, states: list[torch.Tensor]) -> None:
        self.states = states

    def get_rng_state(self) -> torch.Tensor:
        return self.states[self.current or 0]

    def set_rng_state(self, state: torch.Tensor) -> None:
        self.states[self.current or 0] = state

    def manual_seed_all(self, seed: int) -> None:
        self.seed = seed

    def empty_cache(self) -> None:
        self.emptied += 1

    def mem_get_info(self, index: int) -> tuple[int, int]:
        return 10 + index, 20

    def max_memory_allocated(self, index: int) -> int:
        return 7

    def reset_peak_memory_stats(self, index: int) -> None:
        self.peak_reset = index

    def is_bf16_supported(self) -> bool:
        return False


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> FakeModule:
    module = FakeModule()
    monkeypatch.setattr(torch, "npu", module, raising=False)
    return module


def test_every_vendor_is_a_row_and_the_cpu_comes_last() -> None:
    kinds = [backend.type for backend in devices.kinds()]
    assert set(kinds) == {
        "cuda", "mps", "xpu", "npu", "mlu", "musa", "sdaa", "hpu", "neuron", "xla", "cpu",
    }  # fmt: skip
    assert kinds[-1] == "cpu"
    assert {row.type: row.comm_backend for row in ROWS}["cuda"] == "nccl"


def test_a_machine_without_accelerators() -> None:
    assert [backend.type for backend in devices.kinds() if backend.is_available()] == ["cpu"]
    assert devices.choose().type == "cpu"
    for row in ROWS:
        backend = devices.get(row.type)
        assert not backend.is_available() and backend.count() == 0


def test_an_unknown_kind() -> None:
    with pytest.raises(DeviceError, match="'abacus' is not known. Known are cpu, cuda"):
        devices.get("abacus")


def test_a_vendors_device(npu: FakeModule) -> None:
    backend = devices.choose()
    assert backend.type == "npu" and backend.comm_backend == "hccl" and backend.count() == 2
    assert backend.visible_env == "ASCEND_RT_VISIBLE_DEVICES"
    assert isinstance(backend, VendorBackend)
    with pytest.raises(DeviceError, match="Local rank 2 asks for npu:2, but this process sees 2 device.*ASCEND_RT"):
        backend.activate(2)
    assert npu.current is None
    assert not backend.supports(torch.bfloat16) and backend.supports(torch.float16) and backend.supports(torch.float32)
    assert (backend.memory.available(1), backend.memory.total(), backend.memory.peak()) == (11, 20, 7)
    backend.memory.reset_peak(1)
    assert npu.peak_reset == 1


def test_a_vendors_generators(npu: FakeModule) -> None:
    rng = devices.get("npu").rng
    rng.seed(9)
    saved = [state.clone() for state in rng.get_state()]
    rng.set_current(torch.tensor([5], dtype=torch.uint8))
    assert npu.seed == 9 and npu.states[0].item() == 5 and rng.get_current().item() == 5  # type: ignore[union-attr]
    rng.set_state(saved)
    assert npu.states[0].item() == 1


def test_the_cpu_on_request(npu: FakeModule, monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices.choose(cpu=True).type == "cpu"
    monkeypatch.setenv("ACCELERATE_USE_CPU", "yes")
    assert devices.choose().type == "cpu"


def test_the_device_named_in_the_environment(npu: FakeModule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cpu")
    assert devices.choose().type == "cpu"
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "npu:1")
    assert devices.choose().type == "npu" and devices.requested() == "npu:1"
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "xpu")
    with pytest.raises(DeviceError, match="'xpu' asks for a device that this machine has not. It has: npu, cpu"):
        devices.choose()


def test_a_device_of_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Abacus(CpuBackend):
        type = "abacus"

    monkeypatch.setattr(registry, "_own", {})
    devices.register(Abacus())
    assert devices.choose().type == "abacus" and devices.kinds()[0].type == "abacus"
    assert devices.get("abacus").comm_backend == "gloo"


def test_a_package_that_is_not_installed_is_not_imported() -> None:
    backend = VendorBackend(Row(type="nonesuch", comm_backend=None, package="nonesuch_package"))
    assert not backend.is_available() and backend.count() == 0 and backend.supports(torch.float16)


def test_the_cpu() -> None:
    backend = devices.get("cpu")
    assert backend.is_available() and backend.count() == 1 and backend.activate(3) == torch.device("cpu")
    assert backend.supports(torch.bfloat16) and not backend.supports(torch.float8_e4m3fn)
    assert 0 < backend.memory.available() <= backend.memory.total()
    backend.memory.reset_peak()
    before = backend.memory.peak()
    block = torch.ones(64 << 20, dtype=torch.uint8)
    assert backend.memory.peak() >= before and block.numel()
    assert backend.rng.get_state() == [] and backend.rng.get_current() is None


def test_probes_on_a_machine_without_accelerators() -> None:
    assert probes.is_bf16_available() and probes.is_fp16_available()
    for name in probes.__all__:
        if name not in ("is_bf16_available", "is_fp16_available"):
            assert getattr(probes, name)() is False, name
    with pytest.raises(ValueError, match="exclude each other"):
        probes.is_torch_xla_available(check_is_tpu=True, check_is_gpu=True)


def test_probes_with_a_device(npu: FakeModule, monkeypatch: pytest.MonkeyPatch) -> None:
    assert probes.is_npu_available()
    assert not probes.is_bf16_available()

    def broken(device: Any) -> None:
        raise RuntimeError("driver too old")

    monkeypatch.setattr(npu, "set_device", broken)
    assert probes.is_npu_available() and not probes.is_npu_available(check_device=True)


# ---- memory


def test_release(npu: FakeModule) -> None:
    assert memory.release_memory(1, [2]) == [None, None]
    assert memory.release_memory() == []
    assert npu.emptied == 2


def test_released_objects_are_gone() -> None:
    import weakref

    tensor = torch.ones(1)
    watched = weakref.ref(tensor)
    (tensor,) = memory.release_memory(tensor)
    assert tensor is None and watched() is None


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("XPU out of memory"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED."), True),
        (torch.OutOfMemoryError("no"), True),
        (MemoryError(), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_too_little_memory(error: Exception, verdict: bool) -> None:
    assert memory.should_reduce_batch_size(error) is verdict


def test_a_real_allocation_that_is_too_large() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert memory.should_reduce_batch_size(caught.value)
