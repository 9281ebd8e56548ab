"""torchdata's StatefulDataLoader, which collects the state of a stream from its workers."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader

from accelerate.optional import require

__all__ = ["is_torchdata", "quiet", "stateful_class", "with_state"]

_ARGUMENTS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)


def stateful_class() -> Any:
    """The class StatefulDataLoader.

    Raises:
        MissingPackageError: torchdata is not installed, or older than 0.8.
    """
    require("torchdata_stateful", "use_stateful_dataloader=True")
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader


def is_torchdata(loader: Any) -> bool:
    """Whether ``loader`` is a StatefulDataLoader."""
    module = sys.modules.get("torchdata.stateful_dataloader")
    return module is not None and isinstance(loader, module.StatefulDataLoader)


@contextmanager
def quiet() -> Generator[None]:
    """A context without the warning that torchdata 0.11 causes in torch 2.13 whenever a loader is made."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'set_vital' is deprecated", UserWarning)
        yield


def with_state(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A StatefulDataLoader over what ``loader`` reads, of the same class besides; ``loader`` where it is one."""
    kind = stateful_class()
    if is_torchdata(loader):
        return loader
    given = {name: getattr(loader, name) for name in _ARGUMENTS if hasattr(loader, name)}
    with quiet():
        template = kind(loader.dataset, batch_size=1, **given)
    base = type(loader)
    cls = kind if base is DataLoader else type(base.__name__, (base, kind), {"__module__": base.__module__})
    twin: DataLoader[Any] = object.__new__(cls)
    twin.__dict__.update({**template.__dict__, **loader.__dict__, "_iterator": None})
    return twin
