"""What is saved, where, and how it is found again: never half of it, and nothing that has to be unpickled."""

from __future__ import annotations

from accelerate import lazy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from accelerate.checkpoint import files, job, layout, load, local_store, parts, preempt, request, save

__all__ = ["files", "job", "layout", "load", "local_store", "parts", "preempt", "request", "save"]

__getattr__, __dir__, _ = lazy.attach(__name__, {}, __all__)
