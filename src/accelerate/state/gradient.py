"""Whether gradients are synchronised now, and where the active data loader stands."""

from __future__ import annotations

import weakref
from typing import Any

from accelerate import runtime
from accelerate.errors import NotSetUpError
from accelerate.state.shared import SharedDict

__all__ = ["GradientState"]


class GradientState:
    """State of gradient accumulation, shared by every instance in this process.

    ``sync_gradients`` is a plain attribute: it is read several times a step.
    """

    _shared_state = SharedDict("gradient")

    sync_gradients: bool
    plugin_kwargs: dict[str, Any]
    _is_xla_gradients_synced: bool
    _dataloader_references_ref: list[Any]

    def __init__(self, gradient_accumulation_plugin: Any | None = None) -> None:
        self.__dict__ = runtime.slots().gradient
        if not self.initialized:
            self.sync_gradients = True
            self.plugin_kwargs = {}
            self._is_xla_gradients_synced = False
            self._dataloader_references_ref = []
        if gradient_accumulation_plugin is not None:
            self.plugin_kwargs = gradient_accumulation_plugin.to_kwargs()

    @property
    def initialized(self) -> bool:
        """Whether the shared state holds anything."""
        return "sync_gradients" in self.__dict__

    @property
    def num_steps(self) -> int:
        """The number of batches that one optimizer step is made of."""
        return int(self.plugin_kwargs.get("num_steps") or 1)

    @property
    def adjust_scheduler(self) -> bool:
        """Whether a scheduler counts the batches of a window rather than its one step."""
        return bool(self.plugin_kwargs.get("adjust_scheduler", False))

    @property
    def sync_with_dataloader(self) -> bool:
        """Whether the end of a data loader closes a window."""
        return bool(self.plugin_kwargs.get("sync_with_dataloader", True))

    @property
    def dataloader_references(self) -> list[Any]:
        """The loaders that are being iterated, outermost first, after a leading None."""
        return [None, *self._live()]

    @property
    def active_dataloader(self) -> Any | None:
        """The loader whose iteration began last and goes on, or None."""
        found = self._dataloader_references_ref
        while found:
            loader = found[-1]()
            if loader is not None:
                return loader
            found.pop()
        return None

    @property
    def in_dataloader(self) -> bool:
        """Whether a prepared loader is being iterated."""
        return self.active_dataloader is not None

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the active loader has given its last batch."""
        loader = self.active_dataloader
        return False if loader is None else bool(loader.end_of_dataloader)

    @property
    def remainder(self) -> int:
        """How many samples of the active loader's last batch are real; -1 where not known or outside a loader."""
        loader = self.active_dataloader
        return -1 if loader is None else int(loader.remainder)

    @property
    def is_xla_gradients_synced(self) -> bool:
        """Whether gradients on XLA devices were reduced since the last step."""
        return self._is_xla_gradients_synced

    @is_xla_gradients_synced.setter
    def is_xla_gradients_synced(self, synced: bool) -> None:
        self._is_xla_gradients_synced = synced

    def _set_sync_gradients(self, sync_gradients: bool) -> None:
        self.sync_gradients = sync_gradients
        self._is_xla_gradients_synced = False

    def _add_dataloader(self, dataloader: Any) -> None:
        """Makes ``dataloader`` the active one; held weakly, and once however often it is added."""
        self._remove_dataloader(dataloader)
        self._dataloader_references_ref.append(weakref.ref(dataloader))

    def _remove_dataloader(self, dataloader: Any) -> None:
        self._dataloader_references_ref[:] = [
            held for held in self._dataloader_references_ref if held() not in (None, dataloader)
        ]

    def _live(self) -> list[Any]:
        return [loader for held in self._dataloader_references_ref if (loader := held()) is not None]

    @classmethod
    def _reset_state(cls) -> None:
        """Empties the shared state."""
        runtime.slots().gradient.clear()

    def __getattr__(self, name: str) -> Any:
        if name in GradientState.__annotations__:
            raise NotSetUpError(
                f"GradientState.{name} was read after the state had been reset. Construct `GradientState()` again."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        if not self.initialized:
            return "GradientState(not set up)"
        return (
            f"GradientState(sync_gradients={self.sync_gradients}, end_of_dataloader={self.end_of_dataloader}, "
            f"remainder={self.remainder}, {self.plugin_kwargs})"
        )
