"""One engine as the façade drives it: backward decides the boundary, the optimizer's step steps."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from accelerate.config.conflict import reconcile
from accelerate.errors import ConfigError, MisplacedArgumentError, StateError
from accelerate.strategies.deepspeed import gradients
from accelerate.strategies.deepspeed.precision import compute_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DeepSpeedEngineWrapper"]


class DeepSpeedEngineWrapper:
    """An engine and where it stands in its accumulation window. ``engine`` is DeepSpeed's own.

    ``complete``: the last backward closed a window. ``pending``: its gradients have not been stepped with yet.
    """

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.complete = True
        self.pending = False
        self.counted = 0
        self._alone = False
        self._held = 0
        self._max_norm: float | None = None
        self._norm: Any = None
        dtype = compute_dtype(getattr(engine, "config", None) or {})
        self._dtype = None if dtype is torch.float32 else dtype
        self.ran = False
        engine.register_forward_pre_hook(self._before_forward, with_kwargs=True)

    @property
    def stage(self) -> int:
        """The ZeRO stage."""
        return int(self.engine.zero_optimization_stage())

    @property
    def steps(self) -> int:
        """How many micro-batches the engine's configuration makes one step of."""
        return int(self.engine.gradient_accumulation_steps())

    def _before_forward(self, module: Any, args: Any, kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            self.ran = True
        if self._dtype is None:
            return None
        return _cast(args, self._dtype), _cast(kwargs, self._dtype)

    @contextmanager
    def held(self) -> Iterator[None]:
        """A block in which no backward closes a window."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    def closes(self, state: Any) -> bool:
        """Whether the backward that comes now closes a window; tells the gradient state.

        ``accumulate()`` and callers of their own (transformers) say so by ``state.sync_gradients``. Where nobody opens
        windows, the engine's configuration counts micro-batches.
        """
        if self._held:
            return False
        synced = bool(state.sync_gradients)
        steps = int(state.num_steps)
        if self.counted == 0:
            self._alone = synced and steps > 1 and steps == self.steps and not state.end_of_dataloader
        if not self._alone:
            return synced
        closed = self.counted + 1 >= steps or (state.sync_with_dataloader and state.end_of_dataloader)
        state._set_sync_gradients(bool(closed))
        return bool(closed)

    def backward(self, loss: torch.Tensor, sync_gradients: bool = True, **kwargs: Any) -> None:
        """Collective. Runs the engine's backward; closes the window where ``sync_gradients``.

        Raises:
            StateError: gradients of a closed window were not stepped with.
            MisplacedArgumentError: the engine does not take a keyword.
        """
        retain, scaled = kwargs.pop("retain_graph", False), kwargs.pop("scale_wrt_gas", False)
        if kwargs:
            name, value = next(iter(kwargs.items()))
            raise MisplacedArgumentError(
                f"backward() got {name}={value!r}, which DeepSpeed's engine does not take. It takes retain_graph and "
                "scale_wrt_gas."
            )
        self.enter(sync_gradients)
        self.engine.backward(loss, retain_graph=bool(retain), scale_wrt_gas=bool(scaled))
        self.leave(sync_gradients)

    def enter(self, sync_gradients: bool) -> None:
        """Tells the engine, before a backward that reaches it, whether that closes the window."""
        if self.pending and self.stage > 0:
            raise StateError(
                f"backward() was called twice without optimizer.step() between, which ZeRO stage {self.stage} cannot "
                "add up: it has reduced the first gradients already. Put micro-batches into accelerator.accumulate() "
                "(or all but the last into accelerator.no_sync()), or add the losses before one backward."
            )
        self.engine.set_gradient_accumulation_boundary(sync_gradients)

    def leave(self, sync_gradients: bool) -> None:
        """Takes in that a backward has reached the engine."""
        self.ran = False
        self.complete = self.pending = sync_gradients
        self.counted = 0 if sync_gradients else self.counted + 1
        if not sync_gradients:
            self.engine.step()  # only counts the micro-batch

    def step(self) -> bool:
        """Collective. Steps with the gradients of the closed window, if there are any. Returns False where the engine
        skipped the step for gradients that are not finite."""
        if not self.pending:
            return True
        engine = self.engine
        optimizer, configured = engine.optimizer, getattr(engine.optimizer, "clip_grad", None)
        if self._max_norm is not None and configured is not None:
            optimizer.clip_grad = self._max_norm
        try:
            with gradients.remembered(optimizer, self._norm):
                engine.step()
        finally:
            if configured is not None:
                optimizer.clip_grad = configured
            self._max_norm = self._norm = None
            self.pending = False
        engine._is_gradient_accumulation_boundary = None  # scripts may drive the engine themselves, too
        return bool(engine.was_step_applied())

    def reset(self) -> None:
        """Forgets gradients and counts, after the engine's state was replaced."""
        self._max_norm = self._norm = None
        self.pending, self.complete, self.counted = False, True, 0

    def zero_grad(self) -> None:
        """Throws away gradients of a closed window that were not stepped with."""
        if self.pending:
            gradients.discard(self.engine)
            self._max_norm = self._norm = None
            self.pending = False

    def clip(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Collective. The norm of the whole gradient; the step that follows clips to ``max_norm``.

        Raises:
            ConfigError: another norm than the 2-norm is asked for.
        """
        if norm_type != 2.0:
            raise ConfigError(
                f"clip_grad_norm_(norm_type={norm_type}) was asked for, but DeepSpeed's engine clips by the 2-norm."
            )
        if not self.pending:
            return torch.zeros((), device=self.engine.device)
        self._norm = None
        norm, answer = gradients.norm_of(self.engine)
        norm = norm.detach().float()
        self.engine._global_grad_norm = norm
        if math.isfinite(max_norm):
            self._clip_to(self._agreed(max_norm), norm)
        self._norm = answer
        return norm

    def _agreed(self, max_norm: float) -> float:
        configured = float(self.engine.gradient_clipping() or 0.0)
        chosen = reconcile(
            "gradient_clipping",
            max_norm,
            configured or None,
            max_norm,
            code=f"clip_grad_norm_(…, {max_norm}) in code",
            launch=f"gradient_clipping={configured} in DeepSpeed's configuration",
        )
        return float(chosen)

    def _clip_to(self, max_norm: float, norm: torch.Tensor) -> None:
        if hasattr(self.engine.optimizer, "clip_grad"):
            self._max_norm = max_norm
            return
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        with torch.no_grad():
            for tensor in gradients.tensors(self.engine):
                tensor.mul_(factor.to(tensor.device))

    def scale(self, factor: float) -> None:
        """Multiplies the gradients of the closed window by ``factor``."""
        gradients.scale(self.engine, factor)
        self._norm = None

    def get_global_grad_norm(self) -> float | None:
        """The norm of the last step's gradient, as the engine has it."""
        norm = self.engine.get_global_grad_norm()
        return norm.item() if isinstance(norm, torch.Tensor) else norm


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Floating-point tensors of a nested structure in ``dtype``."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() and value.dtype != dtype else value
    if type(value) in (list, tuple):
        return type(value)([_cast(item, dtype) for item in value])
    if isinstance(value, dict):
        cast = {key: _cast(item, dtype) for key, item in value.items()}
        return cast if type(value) is dict else _same_kind(value, cast)
    return value


def _same_kind(value: Any, items: dict[str, Any]) -> Any:
    import copy

    made = copy.copy(value)
    for key, item in items.items():
        made[key] = item
    return made
