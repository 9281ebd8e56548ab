"""WHAT is saved: the seam between a strategy and the checkpoint store.

Tensors go by *canonical* name: the name the parameter had before any wrapper (DDP's ``module.``, compile's
``_orig_mod.``, FSDP's ``_fsdp_wrapped_module.``, checkpointing's ``_checkpoint_wrapped_module.``) was put around it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch

__all__ = ["LoadReport", "ModelState", "OptimizerState", "StateAdapter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """A model's tensors by canonical name. ``aliases`` maps a name that shares storage to the one name kept.

    A tensor may be a DTensor where the adapter is ``sharded``.
    """

    tensors: dict[str, torch.Tensor]
    aliases: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerState:
    """An optimizer's state by canonical parameter name.

    ``state`` maps name → {"step": …, "exp_avg": tensor, …}; ``param_groups`` hold "params" as lists of names. An
    optimizer whose parameters belong to no known model uses ``"<group>.<index>"`` as names and says so in ``named``.
    ``extra`` holds what an optimizer's state dictionary has beside the two.
    """

    state: dict[str, dict[str, Any]]
    param_groups: list[dict[str, Any]]
    named: bool = True
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What a load restored, what it wanted and did not find, and what it found and did not want."""

    restored: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()


class StateAdapter(ABC):
    """Reads and writes the state of what one strategy prepared.

    ``sharded``: every rank must call, tensors are DTensors or shards, and files are written through
    ``torch.distributed.checkpoint``. ``engine``: an engine owns the files; only ``save_engine`` and ``load_engine`` are
    used. Otherwise the main process alone writes plain tensors.

    ``engine_classes`` names what an engine's own files hold beside tensors and plain values: they are unpickled if they
    ask for nothing else.
    """

    sharded: ClassVar[bool] = False
    engine: ClassVar[bool] = False
    engine_classes: ClassVar[frozenset[str]] = frozenset()
    # Sharded state is brought together into single files on the main process.
    whole: bool = False

    @abstractmethod
    def model_state(self, model: torch.nn.Module) -> ModelState:
        """The model's state; no tensor is copied that need not be. Collective where ``sharded``."""

    @abstractmethod
    def load_model_state(
        self, model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], *, strict: bool = True
    ) -> LoadReport:
        """Copies tensors into the model in place. Collective where ``sharded``.

        Raises CheckpointMismatchError where ``strict`` and names or shapes differ, before anything is changed.
        """

    @abstractmethod
    def optimizer_state(
        self, optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module | None]
    ) -> OptimizerState:
        """The bare optimizer's state by canonical name (``naming.parameter_names``). Collective where ``sharded``."""

    @abstractmethod
    def load_optimizer_state(
        self,
        optimizer: torch.optim.Optimizer,
        models: Sequence[torch.nn.Module | None],
        state: OptimizerState,
        *,
        strict: bool = True,
    ) -> LoadReport:
        """Restores the bare optimizer's state by canonical name. Collective where ``sharded``."""

    def layout(
        self, optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module | None]
    ) -> Mapping[str, torch.Tensor]:
        """The tensors, laid out as the optimizer's state of them is, by the names that ``optimizer_state`` uses.
        Collective where ``sharded``."""
        from accelerate.checkpoint.naming import parameter_names

        names, _ = parameter_names(optimizer, models)
        return {
            name: parameter
            for group, own in zip(optimizer.param_groups, names, strict=True)
            for name, parameter in zip(own, group["params"], strict=True)
        }

    def optimizer_names(
        self, optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module | None]
    ) -> list[list[str]]:
        """The names that ``optimizer_state`` uses, by group. Collective where ``sharded``."""
        from accelerate.checkpoint.naming import parameter_names

        if self.sharded:
            return [list(group["params"]) for group in self.optimizer_state(optimizer, models).param_groups]
        return parameter_names(optimizer, models)[0]

    def check_optimizer_state(
        self, optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module | None], state: OptimizerState
    ) -> LoadReport:
        """What ``load_optimizer_state`` would restore, by names and shapes; nothing is changed. Collective where
        ``sharded``."""
        from accelerate.checkpoint.optimizer_state import check

        what = f"optimizer {type(optimizer).__name__}"
        return check(what, self.optimizer_names(optimizer, models), self.layout(optimizer, models), state)[0]

    @abstractmethod
    def full_state_dict(self, model: torch.nn.Module, *, cpu: bool = True) -> dict[str, torch.Tensor]:
        """Plain tensors by canonical name, whole on rank 0 (empty elsewhere where ``sharded``). Collective."""

    def owns(self, obj: Any) -> bool:
        """Whether an engine's own files hold the state of this prepared optimizer, scheduler or loader already."""
        return False

    def save_engine(self, model: Any, folder: Path, name: str, **options: Any) -> None:
        """Collective. Writes an engine's own files into ``folder / name``; only where ``engine``. ``options`` are the
        user's further keywords of ``save_state``."""
        raise TypeError(f"{type(self).__name__} has no engine that writes its own files")

    def load_engine(self, model: Any, folder: Path, name: str, **options: Any) -> None:
        """Collective. Reads what ``save_engine`` wrote; only where ``engine``."""
        raise TypeError(f"{type(self).__name__} has no engine that reads its own files")
