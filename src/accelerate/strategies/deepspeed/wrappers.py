"""What ``prepare`` returns for an optimizer and a scheduler that an engine drives."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

from accelerate.strategies.deepspeed.handle import DeepSpeedEngineWrapper
from accelerate.strategies.optimizer import AcceleratedOptimizer
from accelerate.strategies.scheduler import AcceleratedScheduler

__all__ = ["DeepSpeedOptimizerWrapper", "DeepSpeedSchedulerWrapper", "Group"]


class Group(MutableMapping[str, Any]):
    """A parameter group as it was given: ``params`` are the model's own, the rest is the engine's, read and written."""

    __slots__ = ("_held", "_params")

    def __init__(self, held: dict[str, Any], params: list[Any]) -> None:
        self._held, self._params = held, params

    def __getitem__(self, key: str) -> Any:
        return self._params if key == "params" else self._held[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._held[key] = value

    def __delitem__(self, key: str) -> None:
        del self._held[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def __repr__(self) -> str:
        return repr(dict(self))


class DeepSpeedOptimizerWrapper(AcceleratedOptimizer):
    """The optimizer of an engine: ``step`` steps the engine when its gradients are complete.

    ``optimizer`` is the optimizer that updates (as given, or made from the configuration); the engine's own around it
    answers everything else (``loss_scale``, ``overflow`` …).
    """

    def __init__(
        self, optimizer: Any, engine: DeepSpeedEngineWrapper | None = None, groups: Sequence[list[Any]] = ()
    ) -> None:
        super().__init__(optimizer, device_placement=False)
        self._handle = engine
        self._given = list(groups)

    @property
    def param_groups(self) -> list[Any]:
        """The groups; their parameters are those of the model, whatever the engine made of them."""
        held = self.optimizer.param_groups
        if len(self._given) != len(held):
            return held
        return [Group(group, params) for group, params in zip(held, self._given, strict=True)]

    @param_groups.setter
    def param_groups(self, value: Any) -> None:
        self.optimizer.param_groups = value

    @property
    def gradients_complete(self) -> bool:
        return super().gradients_complete if self._handle is None else self._handle.complete

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Collective. Steps the engine if the last backward closed a window; else does nothing."""
        if self._handle is None:
            super().step(closure)
            return
        if closure is not None:
            raise TypeError("optimizer.step(closure) was called, but DeepSpeed's engine cannot rerun a closure.")
        if not self._handle.pending:
            return
        if self._before_step is not None:
            self._before_step()
        self._is_overflow = not self._handle.step()
        self._accelerate_step_called = True

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Throws away gradients that were not stepped with; after a step the engine has cleared them itself."""
        if self._handle is None:
            super().zero_grad(set_to_none)
        else:
            self._handle.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """This rank's part of the engine's optimizer state."""
        return self._inner.state_dict()  # type: ignore[no-any-return]

    def load_state_dict(self, state_dict: Any) -> None:
        self._inner.load_state_dict(state_dict)

    @property
    def _inner(self) -> Any:
        return self.optimizer if self._handle is None else self._handle.engine.optimizer

    def __getattr__(self, name: str) -> Any:
        if name in ("optimizer", "_handle", "_given"):
            raise AttributeError(name)
        inner = self._inner
        return getattr(inner, name) if hasattr(inner, name) else getattr(self.optimizer, name)


class DeepSpeedSchedulerWrapper(AcceleratedScheduler):
    """The scheduler of an engine, which moves it once for every step that was not skipped; ``step`` does nothing."""

    def __init__(self, scheduler: Any, optimizers: Any) -> None:
        super().__init__(scheduler, optimizers)

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing: the engine has moved the schedule in its own step."""
