"""The optimizer that ``prepare`` returns: it steps when gradients are complete, and knows whether it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from accelerate import runtime
from accelerate.comm.nested import honor_type
from accelerate.errors import StateError

if TYPE_CHECKING:
    from accelerate.precision.base import Precision

__all__ = ["AcceleratedOptimizer", "move_to_device", "patch_optimizer_step"]


def move_to_device(state: Any, device: torch.device) -> Any:
    """A nested state with every tensor on ``device``."""
    if isinstance(state, (list, tuple)):
        return honor_type(state, (move_to_device(item, device) for item in state))
    if isinstance(state, dict):
        return type(state)({key: move_to_device(item, device) for key, item in state.items()})
    return state.to(device) if isinstance(state, torch.Tensor) else state


def patch_optimizer_step(accelerated_optimizer: AcceleratedOptimizer, method: Callable[..., Any]) -> Callable[..., Any]:
    """``method`` in a wrapper that notes on ``accelerated_optimizer`` that the bare step ran."""

    def patched_step(*args: Any, **kwargs: Any) -> Any:
        accelerated_optimizer._accelerate_step_called = True
        return method(*args, **kwargs)

    return patched_step


_NO_CLOSURE = (
    "optimizer.step(closure) was called in the middle of an accumulation window. A closure computes the whole gradient "
    "of its step, perhaps several times, so there is nothing to add up over micro-batches. Loop over them inside the "
    "closure, with gradient_accumulation_steps=1; or call backward yourself and step() without a closure."
)


class _Noting:
    """A closure that remembers what it returned the first time."""

    __slots__ = ("_closure", "_called", "first")

    def __init__(self, closure: Callable[[], Any]) -> None:
        self._closure, self._called, self.first = closure, False, None

    def __call__(self) -> Any:
        value = self._closure()
        if not self._called:
            self._called, self.first = True, value
        return value


def _inner(name: str, doc: str) -> Any:
    """A property that reads and writes attribute ``name`` of the inner optimizer."""

    def read(self: AcceleratedOptimizer) -> Any:
        return getattr(self.optimizer, name)

    def write(self: AcceleratedOptimizer, value: Any) -> None:
        setattr(self.optimizer, name, value)

    return property(read, write, doc=doc)


class AcceleratedOptimizer(torch.optim.Optimizer):
    """A torch optimizer in front of another one.

    ``step`` and ``zero_grad`` do nothing while gradients are still being accumulated. ``step`` goes through the job's
    precision, which may skip it (non-finite float16 gradients); then ``step_was_skipped`` is True until the next step.

    Args:
        optimizer: The bare optimizer.
        device_placement: Whether its state is moved to the rank's device now.
        scaler: A gradient scaler to step through when there is no job precision.
    """

    # torch.optim.Optimizer.__init__ is not called: parameters, state and hooks are those of the inner optimizer.
    def __init__(self, optimizer: torch.optim.Optimizer, device_placement: bool = True, scaler: Any = None) -> None:
        from accelerate.state import AcceleratorState, GradientState

        self.optimizer, self.scaler, self.device_placement = optimizer, scaler, device_placement
        self.gradient_state, self.accelerator_state = GradientState(), AcceleratorState()
        self._precision = self._choose_precision(scaler)
        self._is_overflow = self._accelerate_step_called = False
        # Set by the façade: the accumulation window it belongs to, and what gradients need before they are used.
        self._window: Any = None
        self._before_step: Callable[[], None] | None = None
        self._keep_methods()
        if device_placement and optimizer.state:
            self._place_state()

    def _keep_methods(self) -> None:
        bare = self.optimizer.step
        self._optimizer_original_step_method = bare
        self._optimizer_patched_step_method = patch_optimizer_step(self, bare)

    @staticmethod
    def _choose_precision(scaler: Any) -> Precision | None:
        held = runtime.find()
        precision = held.precision if held is not None else None
        if scaler is None or (precision is not None and precision.scaler is scaler):
            return precision
        from accelerate.precision.autocast import ScaledPrecision

        device = held.device if held is not None else torch.device("cpu")
        return ScaledPrecision(device, {}, scaler)

    def _place_state(self) -> None:
        for parameter, state in self.optimizer.state.items():
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and key != "step":
                    state[key] = value.to(parameter.device)

    state = _inner("state", "The inner optimizer's state, by parameter.")
    param_groups = _inner("param_groups", "The inner optimizer's groups.")
    defaults = _inner("defaults", "The inner optimizer's defaults.")

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.optimizer!r})"

    @property
    def gradients_complete(self) -> bool:
        """Whether the window this optimizer's model is in has closed, so that a step is due."""
        window = self._window
        return bool(self.gradient_state.sync_gradients if window is None else window.closed)

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last due step was skipped because gradients were not finite."""
        return self._is_overflow

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps the inner optimizer if gradients are complete. Collective under a sharded strategy.

        Returns:
            What ``closure`` returned when it was called first, as torch's optimizers do; None without one.

        Raises:
            StateError: ``closure`` was given in the middle of an accumulation window.
        """
        if not self.gradients_complete:
            if closure is not None:
                raise StateError(_NO_CLOSURE)
            return None
        if self._before_step is not None:
            self._before_step()
        called = None if closure is None else _Noting(closure)
        if self._precision is not None:
            self._is_overflow = not self._precision.step(self.optimizer, called)
        elif called is None:
            self.optimizer.step()
        else:
            self.optimizer.step(called)
        return None if called is None else called.first

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Clears gradients if they are complete, that is, not in the middle of a window."""
        if not self.gradients_complete:
            return
        if set_to_none is None:
            self.optimizer.zero_grad()
        else:
            self.optimizer.zero_grad(set_to_none=set_to_none)

    def train(self) -> Any:
        """Puts a schedule-free optimizer into training mode; others have no modes."""
        method = getattr(self.optimizer, "train", None)
        return method() if callable(method) else None

    def eval(self) -> Any:
        """Puts a schedule-free optimizer into evaluation mode; others have no modes."""
        method = getattr(self.optimizer, "eval", None)
        return method() if callable(method) else None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optimizer.add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def register_step_pre_hook(self, hook: Any) -> Any:
        return self.optimizer.register_step_pre_hook(hook)

    def register_step_post_hook(self, hook: Any) -> Any:
        return self.optimizer.register_step_post_hook(hook)

    def register_state_dict_pre_hook(self, hook: Any, prepend: bool = False) -> Any:
        return self.optimizer.register_state_dict_pre_hook(hook, prepend)

    def register_state_dict_post_hook(self, hook: Any, prepend: bool = False) -> Any:
        return self.optimizer.register_state_dict_post_hook(hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Any, prepend: bool = False) -> Any:
        return self.optimizer.register_load_state_dict_pre_hook(hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Any, prepend: bool = False) -> Any:
        return self.optimizer.register_load_state_dict_post_hook(hook, prepend)

    def __getstate__(self) -> dict[str, Any]:
        # A learning-rate scheduler of torch replaces `step` on the instance; the replacement cannot be pickled.
        left_out = {
            "step",
            "_before_step",
            "_window",
            "_optimizer_original_step_method",
            "_optimizer_patched_step_method",
        }
        return {key: value for key, value in self.__dict__.items() if key not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._window = None
        self._before_step = None
        self._keep_methods()
