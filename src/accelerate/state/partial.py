"""The part of the state that is known before anything is trained: who this process is and where it runs."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from accelerate import devices, env, runtime
from accelerate.comm import operations
from accelerate.comm.connection import backend_for, in_use, leave
from accelerate.config.enums import DistributedType
from accelerate.errors import MisplacedArgumentError, NotBuiltError, NotSetUpError
from accelerate.state.legacy import by_device, reported
from accelerate.state.shared import SharedDict
from accelerate.state.splitting import share
from accelerate.state.startup import start
from accelerate.state.turns import first

__all__ = ["PartialState"]

_OPTIONS = ("backend", "timeout", "init_method")


class PartialState:
    """Who this process is in the job and which device it has; the same state in every instance.

    The first construction in a process sets it up and joins the group (Collective); later ones find it. ``backend``,
    ``timeout`` and ``init_method`` go to the process group.

    Raises:
        StateError: ``cpu=True``, but the process has been set up on another device.
        TopologyError: the processes do not form the group that the environment asks for.
    """

    _shared_state = SharedDict("partial")
    _known_attrs = (
        "_cpu",
        "backend",
        "device",
        "debug",
        "distributed_type",
        "num_processes",
        "process_index",
        "local_process_index",
        "fork_launched",
    )

    _cpu: bool
    backend: str | None
    device: torch.device
    debug: bool
    distributed_type: DistributedType
    num_processes: int
    process_index: int
    local_process_index: int
    fork_launched: bool

    def __init__(self, cpu: bool = False, **kwargs: Any) -> None:
        self.__dict__ = runtime.slots().partial
        if kwargs.pop("_use_sagemaker_dp", False):
            raise NotBuiltError(
                "PartialState(_use_sagemaker_dp=True): SageMaker's data parallel library is not built in."
            )
        unknown = [name for name in kwargs if name not in _OPTIONS]
        if unknown:
            raise MisplacedArgumentError(
                f"PartialState() got {', '.join(unknown)}, which it does not take. It takes cpu, {', '.join(_OPTIONS)}."
            )
        held = start(cpu, **kwargs)
        if self.initialized:
            return
        topology = held.topology
        self._cpu = held.cpu
        self.backend = held.comm_backend
        self.device = held.device
        self.debug = held.verify_shapes
        _, kind = self._prepare_backend(held.cpu, False, kwargs.get("backend"))
        self.distributed_type = reported(topology, held.device.type, kind)
        self.num_processes = topology.world_size
        self.process_index = topology.rank
        self.local_process_index = topology.local_rank
        self.fork_launched = env.flag("FORK_LAUNCHED")

    @property
    def initialized(self) -> bool:
        """Whether the shared state holds anything."""
        return self.__dict__ != {}

    @property
    def use_distributed(self) -> bool:
        """Whether there are several processes."""
        return self.distributed_type is not DistributedType.NO and self.num_processes > 1

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0 of the job."""
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is rank 0 of its machine."""
        return self.local_process_index == 0

    @property
    def is_last_process(self) -> bool:
        """Whether this is the last rank of the job."""
        return self.process_index == self.num_processes - 1

    @property
    def default_device(self) -> torch.device:
        """The kind of device that a process takes here when nothing else is asked for."""
        return torch.device(devices.choose().type)

    def wait_for_everyone(self) -> None:
        """Collective. Returns when every process has called it."""
        operations.barrier()

    @contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """Gives this process's part of ``inputs`` (list, tuple, tensor, dataset, or a dictionary of those): contiguous,
        one longer on the first ranks. With ``apply_padding`` the last element is repeated so that all are equally long.
        """
        if self.num_processes == 1:
            yield inputs
        else:
            yield share(inputs, self.process_index, self.num_processes, apply_padding)

    def main_process_first(self) -> AbstractContextManager[None]:
        """Collective. A block that rank 0 goes through before the others; what it raises there, all ranks raise."""
        return first(self.is_main_process)

    def local_main_process_first(self) -> AbstractContextManager[None]:
        """Collective. A block that rank 0 of each machine goes through before the others."""
        return first(self.is_local_main_process)

    def on_main_process(self, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Makes a function run on rank 0 only, and return None elsewhere."""
        return self._where(lambda: self.is_main_process, function)

    def on_local_main_process(self, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Makes a function run on rank 0 of each machine only."""
        return self._where(lambda: self.is_local_main_process, function)

    def on_last_process(self, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Makes a function run on the last rank only."""
        return self._where(lambda: self.is_last_process, function)

    def on_process(
        self, function: Callable[..., Any] | None = None, process_index: int | None = None
    ) -> Callable[..., Any]:
        """Makes a function run on rank ``process_index`` only; in a job of one process it always runs."""
        return self._where(lambda: self.num_processes == 1 or self.process_index == process_index, function)

    def on_local_process(
        self, function: Callable[..., Any] | None = None, local_process_index: int | None = None
    ) -> Callable[..., Any]:
        """Makes a function run on rank ``local_process_index`` of each machine only, or in a single process."""
        return self._where(lambda: self.num_processes == 1 or self.local_process_index == local_process_index, function)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Prints on rank 0 of each machine."""
        if self.is_local_main_process:
            builtins.print(*args, **kwargs)  # noqa: T201

    def set_device(self) -> None:
        """Makes this process's device the current one."""
        held = runtime.current()
        self.device = held.backend.activate(self.local_process_index)

    def destroy_process_group(self, group: Any | None = None) -> None:
        """Leaves ``group``, or the whole job's; the state stays readable."""
        if group is None:
            leave()
        elif in_use():
            dist.destroy_process_group(group)

    @classmethod
    def _reset_state(cls) -> None:
        """Forgets everything; the process group stays, and the next construction finds it."""
        slots = runtime.slots()
        slots.partial.clear()
        slots.runtime = slots.frames = None

    def _prepare_backend(
        self, cpu: bool, sagemaker_dp: bool = False, backend: str | None = None
    ) -> tuple[str | None, DistributedType]:
        """The communication backend and type that a group of several processes would have here."""
        kind = devices.choose(cpu)
        return backend_for(kind, backend), by_device(kind.type)

    def _where(self, condition: Callable[[], bool], function: Callable[..., Any] | None) -> Callable[..., Any]:
        def decorate(wrapped: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(wrapped)
            def run_here(*args: Any, **kwargs: Any) -> Any:
                return wrapped(*args, **kwargs) if condition() else None

            return run_here

        return decorate if function is None else decorate(function)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name == "device":
            held = runtime.find()
            if held is not None:
                held.device = value

    def __getattr__(self, name: str) -> Any:
        if name in PartialState._known_attrs:
            raise NotSetUpError(
                f"{type(self).__name__}.{name} was read after the state had been reset. Construct `PartialState()` or "
                "`Accelerator()` again."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        if not self.initialized:
            return f"{type(self).__name__}(not set up)"
        over = f" over {self.backend}" if self.backend else ""
        return (
            f"{type(self).__name__}(rank {self.process_index} of {self.num_processes}, "
            f"local rank {self.local_process_index}, on {self.device}, {self.distributed_type.value}{over})"
        )
