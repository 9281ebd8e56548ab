"""Progress bars that are drawn once a machine."""

from __future__ import annotations

from typing import Any

from accelerate import optional
from accelerate.logging import place

__all__ = ["tqdm"]


def tqdm(*args: Any, main_process_only: bool = True, **kwargs: Any) -> Any:
    """A ``tqdm.auto.tqdm`` over the arguments; it is drawn on the local main process only, unless told otherwise.

    ``disable=True`` turns it off everywhere.

    Raises:
        MissingPackageError: tqdm is not installed.
        TypeError: the first argument is a boolean, as ``main_process_only`` once was.
    """
    optional.require("tqdm", "`accelerate.utils.tqdm`")
    from tqdm.auto import tqdm as bar

    if args and isinstance(args[0], bool):
        raise TypeError(
            f"tqdm() got {args[0]} where the iterable goes. Give it by name: tqdm(items, main_process_only={args[0]})."
        )
    if main_process_only and not kwargs.get("disable") and not place().is_local_main:
        kwargs["disable"] = True
    return bar(*args, **kwargs)
