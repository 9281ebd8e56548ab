"""The state of one process: shared, assignable, and an AttributeError where it is not set up."""

from __future__ import annotations

import copy
import logging
import pickle
from datetime import timedelta
from typing import Any

import pytest
import torch

from accelerate import runtime, state
from accelerate.comm.solo import SoloCollectives
from accelerate.config.enums import DistributedType
from accelerate.errors import (
    DeviceError,
    MisplacedArgumentError,
    NotBuiltError,
    NotSetUpError,
    StateError,
    TopologyError,
)
from accelerate.state import GradientState, PartialState, is_initialized
from accelerate.topology import Topology

pytestmark = pytest.mark.usefixtures("fresh_state")


def test_nothing_is_set_up_before_the_first_construction() -> None:
    assert PartialState._shared_state == {}
    assert not is_initialized()
    assert runtime.find() is None


def test_one_process() -> None:
    held = PartialState()
    assert held.initialized and not held.use_distributed
    assert held.device == torch.device("cpu") and held.backend is None and not held.debug
    assert held.distributed_type is DistributedType.NO
    assert (held.num_processes, held.process_index, held.local_process_index) == (1, 0, 0)
    assert held.is_main_process and held.is_local_main_process and held.is_last_process
    assert held.default_device == torch.device("cpu") and held.fork_launched is False
    assert isinstance(runtime.current().collectives, SoloCollectives)
    assert repr(held) == "PartialState(rank 0 of 1, local rank 0, on cpu, NO)"


def test_every_instance_shares_what_is_assigned() -> None:
    first, second = PartialState(), PartialState(cpu=True)
    first.device = torch.device("meta")
    first.distributed_type = DistributedType.FSDP
    first.extra = "theirs"  # type: ignore[attr-defined]
    assert second.device == torch.device("meta") and second.distributed_type is DistributedType.FSDP
    assert PartialState._shared_state["extra"] == "theirs"
    assert runtime.current().device == torch.device("meta")


def test_reset_on_the_class_and_on_an_instance() -> None:
    held = PartialState()
    PartialState._reset_state()
    assert PartialState._shared_state == {} and not held.initialized and runtime.find() is None
    assert repr(held) == "PartialState(not set up)"
    again = PartialState()
    assert held.device == again.device
    again._reset_state()
    assert PartialState._shared_state == {}


def test_attributes_that_are_not_there() -> None:
    held = PartialState()
    with pytest.raises(AttributeError, match="'PartialState' object has no attribute 'nonsense'"):
        _ = held.nonsense  # type: ignore[attr-defined]
    PartialState._reset_state()
    assert getattr(held, "device", None) is None
    with pytest.raises(NotSetUpError, match="PartialState.device was read after the state had been reset"):
        _ = held.device


def test_a_subclass_that_fills_the_shared_state_itself() -> None:
    class Own(PartialState):
        def __init__(self) -> None:
            self.__dict__ = self._shared_state
            if not self.initialized:
                self._cpu = True
                self.backend, self.distributed_type = self._prepare_backend(True, False, None)
                self.device = torch.device("cpu")
                self.num_processes, self.process_index, self.local_process_index = 4, 2, 0

    held = Own()
    assert held.is_local_main_process and not held.is_main_process and held.use_distributed
    assert held.backend == "gloo" and held.distributed_type is DistributedType.MULTI_CPU
    assert Own().process_index == 2
    with held.split_between_processes([0, 1, 2, 3]) as mine:
        assert mine == [2]


def test_unknown_and_unbuilt_arguments() -> None:
    with pytest.raises(MisplacedArgumentError, match="got tiemout"):
        PartialState(tiemout=timedelta(seconds=1))
    with pytest.raises(TypeError):
        PartialState(nonsense=1)
    with pytest.raises(NotBuiltError, match="SageMaker"):
        PartialState(_use_sagemaker_dp=True)
    assert PartialState._shared_state == {}
    assert PartialState(backend=None, timeout=timedelta(seconds=5), _use_sagemaker_dp=False).num_processes == 1


def test_cpu_after_another_device() -> None:
    PartialState()
    runtime.current().device = torch.device("meta")
    with pytest.raises(StateError, match="cpu=True was asked for, but this process has been set up on meta"):
        PartialState(cpu=True)
    assert PartialState(cpu=False).initialized


def test_deepspeed_around_the_constructor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    held = PartialState()
    monkeypatch.delenv("ACCELERATE_USE_DEEPSPEED")
    assert held.distributed_type is DistributedType.DEEPSPEED
    assert PartialState().distributed_type is DistributedType.DEEPSPEED and not held.use_distributed


def test_debug_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_DEBUG_MODE", "1")
    assert PartialState().debug is True


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cuda:1")
    with pytest.raises(DeviceError, match="'cuda:1' asks for a device that this machine has not. It has: cpu"):
        PartialState()
    assert PartialState(cpu=True).device == torch.device("cpu")


def test_half_a_job_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(TopologyError, match="WORLD_SIZE=2 asks for 2 processes, but RANK is not set"):
        PartialState()
    assert PartialState._shared_state == {}


def test_a_job_without_a_meeting_place_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(TopologyError, match="rank 1 of 2 .torchrun., but MASTER_ADDR and MASTER_PORT is not set"):
        PartialState()


def test_a_pickled_state_is_a_snapshot() -> None:
    held = PartialState()
    again: Any = pickle.loads(pickle.dumps(held))
    assert again.device == held.device
    again.device = torch.device("meta")
    assert held.device == torch.device("cpu")
    assert copy.deepcopy(held).process_index == 0


def test_decorators_with_and_without_parentheses() -> None:
    held = PartialState()

    @held.on_main_process
    def plain(x: int) -> int:
        """Doc."""
        return x

    @held.on_process(process_index=3)
    def other() -> str:
        return "alone"

    assert plain(2) == 2 and plain.__name__ == "plain" and plain.__doc__ == "Doc."
    assert other() == "alone"
    assert held.on_main_process()(lambda: 1)() == 1 and held.on_last_process(lambda: 2)() == 2
    assert held.on_local_main_process(lambda: 3)() == 3
    assert held.on_local_process(lambda: 4, local_process_index=7)() == 4


def test_print_and_waiting(capsys: pytest.CaptureFixture[str]) -> None:
    held = PartialState()
    held.print("a", "b", sep="-")
    held.wait_for_everyone()
    with held.main_process_first(), held.local_main_process_first():
        held.print("c", end="")
    assert capsys.readouterr().out == "a-b\nc"


def test_an_error_in_a_block_of_one_process_is_just_raised() -> None:
    with pytest.raises(KeyError):
        with PartialState().main_process_first():
            raise KeyError("x")


def test_splitting_in_one_process_gives_the_same_object() -> None:
    inputs = [1, 2, 3]
    with PartialState().split_between_processes(inputs, apply_padding=True) as mine:
        assert mine is inputs


def test_the_lazy_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert state.AcceleratorState.__module__ == "accelerate.state.accelerator"
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = state.Nonsense


def test_slots_of_a_thread_are_its_own() -> None:
    held = PartialState()
    with runtime.isolated(Topology(rank=1, world_size=1)):
        assert PartialState._shared_state == {}
    assert held.initialized


def test_no_notice_in_one_process(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        PartialState()
    assert caplog.text == ""


def test_thread_local_shared_dict() -> None:
    class Holder:
        shared = state.ThreadLocalSharedDict()

    held = Holder()
    held.shared["a"] = 1
    assert Holder().shared == {"a": 1}
    held.shared = {"b": 2}
    assert Holder().shared == {"b": 2}
    assert state.do_nothing(1, a=2) is None
    assert GradientState().initialized
