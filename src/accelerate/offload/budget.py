"""How much memory each device may hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from torch import nn

from accelerate import devices
from accelerate.offload.sizes import Dtype, compute_module_sizes, convert_file_size_to_int

__all__ = ["HOST", "MaxMemory", "get_balanced_memory", "get_max_memory"]

MaxMemory: TypeAlias = Mapping[int | str, Any]
HOST = ("cpu", "disk")  # where weights wait but (where there is anything else) nothing is computed
_NAMED = ("mps", *HOST)


def get_max_memory(max_memory: MaxMemory | None = None) -> dict[int | str, int]:
    """Bytes by device: accelerators by number, then "mps", "cpu" and "disk" by name, in the order they are filled.

    Without ``max_memory``, what is free now: on every accelerator of the preferred kind, and in main memory. Texts
    like "20GiB" become bytes, also in the dictionary that was given, since libraries go on with it. Numbers of devices
    that are not here are kept: a plan may be for another machine.

    Raises:
        ValueError: a key is neither a number nor one of those names, or a value is not a size.
    """
    if max_memory is None:
        return _free_memory()
    known: dict[int | str, int] = {}
    for key, value in max_memory.items():
        if not isinstance(key, int) and key not in _NAMED:
            raise ValueError(
                f"max_memory has the device {key!r}. Use the number of an accelerator, 'mps', 'cpu' or 'disk'."
            )
        known[key] = convert_file_size_to_int(value)
    if isinstance(max_memory, dict):
        max_memory.update(known)
    numbers = sorted(key for key in known if isinstance(key, int))
    return {key: known[key] for key in (*numbers, *_NAMED) if key in known}


def _free_memory() -> dict[int | str, int]:
    backend = devices.choose()
    host = devices.get("cpu").memory.available()
    if backend.type == "cpu":
        return {"cpu": host}
    if backend.type == "mps":  # one memory for both
        return {"mps": host}
    free: dict[int | str, int] = {number: backend.memory.available(number) for number in range(backend.count())}
    return {**free, "cpu": host}


def get_balanced_memory(
    model: nn.Module,
    max_memory: MaxMemory | None = None,
    no_split_module_classes: Sequence[str] | str | None = None,
    dtype: Dtype | None = None,
    special_dtypes: Mapping[str, Dtype] | None = None,
    low_zero: bool = False,
) -> dict[int | str, int]:
    """``max_memory`` brought down so that :func:`infer_auto_device_map` fills accelerators evenly, not one by one.

    The last accelerator keeps its limit, for what the estimate leaves over. ``low_zero`` keeps device 0 as empty as
    the others allow, for example for generation. Sizes are as for :func:`compute_module_sizes`.
    """
    limits = get_max_memory(max_memory)
    numbers = [key for key in limits if isinstance(key, int) and limits[key] > 0]
    if len(numbers) < 2:
        return limits
    sizes = compute_module_sizes(model, dtype=dtype, special_dtypes=special_dtypes)
    filled = numbers[1:] if low_zero else numbers
    share = sizes[""] // len(filled) + _slack(model, sizes, no_split_module_classes)
    for number in filled[:-1]:
        limits[number] = min(limits[number], share)
    if low_zero:
        others = sum(limits[number] for number in numbers[1:])
        limits[numbers[0]] = min(limits[numbers[0]], max(0, sizes[""] - others))
    return limits


def _slack(model: nn.Module, sizes: Mapping[str, int], no_split: Sequence[str] | str | None) -> int:
    """How far a device may go over its share: blocks do not end where shares do. A quarter more than one block."""
    whole = {no_split} if isinstance(no_split, str) else set(no_split or ())
    blocks = [0]
    leaves = [0]
    for name, module in model.named_modules():
        size = sizes.get(name, 0)
        if type(module).__name__ in whole:
            blocks.append(size)
        elif size and not any(module.children()):
            leaves.append(size)
    mean = sum(leaves) / max(1, len(leaves) - 1)
    return int(1.25 * max(max(blocks), mean))
