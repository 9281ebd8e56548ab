"""What a mixin of the façade may expect of the whole."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from accelerate.accelerator.construct import Handlers
from accelerate.accelerator.window import Window
from accelerate.precision.base import Precision
from accelerate.strategies.base import Strategy

__all__ = ["Facade"]


class Facade(Protocol):
    """The attributes that ``Accelerator.__init__`` sets, and the calls that mixins make on one another."""

    state: Any
    gradient_state: Any
    handlers: Handlers
    dataloader_config: Any
    project_configuration: Any
    device_placement: bool
    rng_types: list[Any]
    step_scheduler_with_optimizer: bool
    step_scheduler_once: bool
    log_with: list[Any]
    trackers: list[Any]
    flag_tensor: Any
    step: int
    _models: list[Any]
    _optimizers: list[Any]
    _schedulers: list[Any]
    _dataloaders: list[Any]
    _custom_objects: list[Any]
    _windows: dict[tuple[int, ...], Window]
    _window: Window
    _item_unit: float | None

    def _prepare_all(self, *args: Any, device_placement: list[bool] | None = None) -> tuple[Any, ...]: ...

    def _prepare_fsdp2(self, *args: Any, device_placement: list[bool] | None = None) -> tuple[Any, ...]: ...

    @property
    def strategy(self) -> Strategy[Any]: ...

    @property
    def precision(self) -> Precision: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def sync_gradients(self) -> bool: ...

    @property
    def num_processes(self) -> int: ...

    @property
    def process_index(self) -> int: ...

    @property
    def use_distributed(self) -> bool: ...

    @property
    def is_main_process(self) -> bool: ...

    @property
    def gradient_accumulation_steps(self) -> int: ...

    def _settle_gradients(self) -> None: ...

    def _prepare_settings(self) -> dict[str, Any]: ...

    def gather(self, tensor: Any) -> Any: ...

    def prepare_model(
        self, model: torch.nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> torch.nn.Module: ...

    def prepare_optimizer(self, optimizer: Any, device_placement: bool | None = None) -> Any: ...

    def prepare_data_loader(
        self, data_loader: Any, device_placement: bool | None = None, slice_fn_for_dispatch: Any = None
    ) -> Any: ...

    def prepare_scheduler(self, scheduler: Any) -> Any: ...

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any: ...

    def wait_for_everyone(self) -> None: ...
