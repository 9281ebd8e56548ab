"""One training step: accumulation windows, backward, clipping."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch

from accelerate import runtime
from accelerate.accelerator.window import Window, scale_gradients
from accelerate.config.handlers import accumulation_steps
from accelerate.errors import MisplacedArgumentError, StateError

if TYPE_CHECKING:
    from accelerate.accelerator.typing import Facade

__all__ = ["SteppingMixin"]


class _Accumulating:
    """The context of one micro-batch; a class, because a generator costs more than what it guards."""

    __slots__ = ("_contexts", "_facade", "_items", "_models")

    def __init__(self, facade: Facade, models: tuple[Any, ...], items: Any) -> None:
        self._facade, self._models, self._items = facade, models, items
        self._contexts: ExitStack | None = None

    def __enter__(self) -> None:
        facade = self._facade
        facade._micro_items = self._items  # type: ignore[attr-defined]
        facade._open_window(self._models)  # type: ignore[attr-defined]
        if facade.gradient_state.sync_gradients or facade.gradient_state.plugin_kwargs.get("sync_each_batch"):
            return
        self._contexts = ExitStack()
        for model in self._models:
            self._contexts.enter_context(facade.strategy.no_sync(model))

    def __exit__(self, *error: Any) -> None:
        if self._contexts is not None:
            self._contexts.close()
        self._facade._micro_items = None  # type: ignore[attr-defined]


class SteppingMixin:
    """``accumulate``, ``backward`` and what goes between them and ``optimizer.step()``."""

    @property
    def sync_gradients(self: Facade) -> bool:
        """Whether the next backward reduces gradients over the ranks, and a step is due after it."""
        return bool(self.gradient_state.sync_gradients)

    @sync_gradients.setter
    def sync_gradients(self: Facade, value: bool) -> None:
        self.gradient_state._set_sync_gradients(value)

    @property
    def gradient_accumulation_steps(self: Facade) -> int:
        """How many micro-batches make one step."""
        return int(self.gradient_state.num_steps)

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self: Facade, value: int) -> None:
        self.gradient_state.plugin_kwargs.update(num_steps=accumulation_steps(value))

    @property
    def optimizer_step_was_skipped(self: Facade) -> bool:
        """Whether some optimizer's last due step was skipped because gradients were not finite."""
        return any(optimizer.step_was_skipped for optimizer in self._optimizers)

    def accumulate(self: Facade, *models: torch.nn.Module, num_items: Any = None) -> AbstractContextManager[None]:
        """The context of one micro-batch of an accumulation window.

        Inside, ``backward`` divides by the window's length, and gradients, ``optimizer.step``, ``zero_grad``,
        ``clip_grad_norm_`` and ``scheduler.step`` wait until the window closes: after
        ``gradient_accumulation_steps`` micro-batches, or at the end of the loader, whose last window may be shorter
        and is divided by its own length. Each set of models has a window of its own.

        Args:
            *models: The prepared models that are trained in this context.
            num_items: How many items (tokens, say) this micro-batch's mean loss was taken over on this rank, or the
                sum of their weights; see :meth:`backward`.
        """
        return _Accumulating(self, models, num_items)

    def _open_window(self: Facade, models: tuple[Any, ...]) -> None:
        key = tuple([id(model) for model in models])
        window = self._windows.get(key)
        if window is None:
            _check_models(models)
            window = self._windows[key] = Window(models=models)
            if len(self._windows) > 1:
                _link_windows(self)
        state = self.gradient_state
        if self.strategy.caps.owns_accumulation:
            length = state.num_steps
        else:
            length = _length(state) if window.closed else window.divisor
        last = state.sync_with_dataloader and state.end_of_dataloader
        closed = window.advance(length, bool(last))
        self._window = window
        self.step = window.count
        state._set_sync_gradients(closed)
        if closed and window.count != window.divisor:
            _owe(self)

    def backward(self: Facade, loss: torch.Tensor, **kwargs: Any) -> None:
        """Runs the backward pass; inside a window the loss is divided by the window's length first.

        Collective when the window closes: gradients are averaged over the ranks.

        Args:
            loss: A 0-d tensor.
            num_items: How many items (tokens, say) ``loss`` is the mean over on this rank. Given for every
                micro-batch of a window on every rank, the gradient is that of the mean over all items of the whole
                window and all ranks, however they are spread. Without it the gradient is the mean of the
                micro-batches' and ranks' means.
            **kwargs: Go to ``loss.backward`` (``retain_graph`` …). ``learning_rate`` selects
                :meth:`lomo_backward`. ``scale_wrt_gas=False`` tells DeepSpeed that the loss is divided already.

        Raises:
            StateError: some backward of this window had ``num_items`` and another had not.
            TypeError: ``loss`` is no tensor.
        """
        if not isinstance(loss, torch.Tensor):
            raise TypeError(
                f"backward() got a {type(loss).__name__} for the loss; it takes a tensor made from model outputs. "
                "Where a model returns a structure, hand over its loss (outputs.loss)."
            )
        items = kwargs.pop("num_items", None)
        if "learning_rate" in kwargs:
            self.lomo_backward(loss, kwargs.pop("learning_rate"))  # type: ignore[attr-defined]
            return
        caps = self.strategy.caps
        if not caps.owns_backward:
            kwargs.pop("scale_wrt_gas", None)
        items = items if items is not None else self._micro_items  # type: ignore[attr-defined]
        divided = kwargs.get("scale_wrt_gas") is False
        if items is not None:
            loss = _weighed(self, loss, items)
        elif not caps.owns_accumulation and not divided:
            window = self._window
            divisor = window.divisor if window.count else self.gradient_state.num_steps
            if window.items:
                raise StateError(_MIXED)
            window.plain = window is not self._default_window  # type: ignore[attr-defined]
            if divisor != 1:
                loss = loss / divisor
        self.strategy.backward(loss, self.precision, **kwargs)

    def lomo_backward(self: Facade, loss: torch.Tensor, learning_rate: float) -> None:
        """Backward and step in one for a LOMO optimizer, which never holds a whole gradient."""
        for wrapped in self._optimizers:
            fused = getattr(wrapped.optimizer, "fused_backward", None)
            if callable(fused):
                fused(loss, learning_rate)
                return
        raise StateError(
            f"backward(learning_rate={learning_rate!r}) is for LOMO optimizers, and none was prepared. Leave "
            "learning_rate out, or prepare a `lomo_optim.Lomo` optimizer."
        )

    @contextmanager
    def no_sync(self: Facade, model: torch.nn.Module) -> Iterator[None]:
        """A context in which backward of ``model`` leaves gradients local to the rank."""
        context = self.strategy.no_sync(model) if self.use_distributed else nullcontext()
        with context:
            yield

    @staticmethod
    @contextmanager
    def trigger_sync_in_backward(model: torch.nn.Module) -> Iterator[None]:
        """A context whose backward reduces gradients, though the forward ran under ``no_sync``."""
        strategy = runtime.current().strategy
        with strategy.trigger_sync(model) if strategy is not None else nullcontext():
            yield

    @contextmanager
    def autocast(self: Facade, autocast_handler: Any = None) -> Iterator[None]:
        """A context in which operations run in the job's mixed precision; does nothing without one."""
        handler = autocast_handler if autocast_handler is not None else self.handlers.autocast
        with self.precision.forward_context(handler):
            yield

    def unscale_gradients(self: Facade, optimizer: Any = None) -> None:
        """Brings float16 gradients to their true scale, before you look at them. Once a step; only needed when
        gradients are changed other than by the ``clip_grad_*`` calls."""
        given = self._optimizers if optimizer is None else optimizer
        for wrapped in given if isinstance(given, (list, tuple)) else [given]:
            self.precision.unscale(getattr(wrapped, "optimizer", wrapped))
        self._settle_gradients()

    def clip_grad_norm_(self: Facade, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        """Clips gradients to a total norm of ``max_norm``; returns the norm before clipping, of the whole model.

        Inside a window that has not closed it clips nothing, and returns the norm of what this rank has so far.
        Collective under a sharded strategy.
        """
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if not self.gradient_state.sync_gradients:
            return _norm_so_far(self, parameters, norm_type)
        if not self.strategy.caps.owns_clipping:
            _unscale_for(self, parameters)
        self._settle_gradients()
        return self.strategy.clip_grad_norm(self._models, parameters, float(max_norm), float(norm_type))

    def clip_grad_value_(self: Facade, parameters: Any, clip_value: float) -> None:
        """Clips every gradient element to ±``clip_value``; waits until the window closes."""
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if not self.gradient_state.sync_gradients:
            return
        _unscale_for(self, parameters)
        self._settle_gradients()
        self.strategy.clip_grad_value(parameters, clip_value)

    def _settle_gradients(self: Facade) -> None:
        """Collective where counts of items were given. Multiplies gradients by what closed windows owe."""
        windows = [*self._windows.values(), self._default_window]  # type: ignore[attr-defined]
        for window in windows:
            if not window.closed:
                continue
            factor = window.owed(_sum_over_ranks, self.strategy.gradient_divisor(), self._item_unit or 1.0)
            if factor is not None:
                models = window.models or self._models
                if not self.strategy.scale_gradients(models, factor):
                    scale_gradients((p for model in models for p in model.parameters()), factor)
        for optimizer in self._optimizers:
            optimizer._before_step = None


_MIXED = (
    "backward() was called with num_items and without it in one accumulation window, so the gradient has no common "
    "unit. Pass num_items for every micro-batch, or for none."
)


def _check_models(models: tuple[Any, ...]) -> None:
    for model in models:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(
                f"accumulate() got a {type(model).__name__}; it takes the models that are trained in this context, as "
                "they came out of prepare(): `with accelerator.accumulate(model):`."
            )


def _length(state: Any) -> int:
    """The length of a window that opens now: shorter where the loader is known to end before."""
    steps = int(state.num_steps)
    if steps == 1 or not state.sync_with_dataloader:
        return steps
    loader = state.active_dataloader
    left = getattr(loader, "batches_left", None)
    return steps if left is None else max(1, min(steps, left + 1))


def _link_windows(facade: Facade) -> None:
    """Ties every optimizer to the window of the models it trains; called once there are several windows."""
    for optimizer in facade._optimizers:
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for window in facade._windows.values():
            if any(id(p) in own for model in window.models for p in model.parameters()):
                optimizer._window = window


def _owe(facade: Facade) -> None:
    for optimizer in facade._optimizers:
        optimizer._before_step = facade._settle_gradients


def _weighed(facade: Facade, loss: torch.Tensor, items: Any) -> torch.Tensor:
    """The mean loss weighed by its count, in units of the first count seen (so that float16 does not overflow)."""
    if facade.strategy.caps.owns_accumulation:
        raise MisplacedArgumentError(
            f"num_items={items!r} was given, but strategy {facade.strategy.name!r} divides gradients itself. Scale the "
            "loss by your count over the count of the whole step instead."
        )
    count = items.item() if isinstance(items, torch.Tensor) else items
    if not isinstance(count, Real):
        raise TypeError(
            f"num_items={items!r} is no number. Give how many items (or what weight) the mean loss was taken over."
        )
    count = float(count)
    if not 0 <= count < float("inf"):
        raise ValueError(f"num_items={count} is no count; it is the number of items the mean loss was taken over.")
    window = facade._window
    if window.plain:
        raise StateError(_MIXED)
    if facade._item_unit is None:
        facade._item_unit = max(
            1.0, float(_sum_over_ranks(torch.tensor([count], dtype=torch.float32)).item()) / facade.num_processes
        )
    window.items.append(count)
    if window.closed:
        _owe(facade)
    if count == 0:
        # A mean over nothing is nan; the ranks still need the backward to meet in.
        return torch.nan_to_num(loss) * 0.0
    return loss * (count / facade._item_unit)


def _sum_over_ranks(tensor: torch.Tensor) -> torch.Tensor:
    held = runtime.current()
    return held.collectives.all_reduce(tensor.to(held.device), "sum")


def _unscale_for(facade: Facade, parameters: list[torch.Tensor]) -> None:
    if facade.precision.scaler is None:
        return
    own = {id(p) for p in parameters}
    for optimizer in facade._optimizers:
        if any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
            facade.precision.unscale(optimizer.optimizer)


def _norm_so_far(facade: Facade, parameters: list[torch.Tensor], norm_type: float) -> torch.Tensor:
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:
        return torch.zeros((), device=facade.device)
    norm = torch.nn.utils.get_total_norm(grads, norm_type)
    scaler = facade.precision.scaler
    return norm if scaler is None else norm / scaler.get_scale()
