"""The table of devices, in order of preference, and the choice among them."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from accelerate import env
from accelerate.devices.base import DeviceBackend
from accelerate.devices.cpu import CpuBackend
from accelerate.devices.vendor import ROWS, VendorBackend
from accelerate.devices.xla import XlaBackend
from accelerate.errors import DeviceError

__all__ = ["choose", "get", "kinds", "register", "requested"]

_own: dict[str, DeviceBackend] = {}


def register(backend: DeviceBackend) -> None:
    """Adds a device of the user's own, before the built-in ones; a package may instead name an object or class of its
    own in the entry-point group ``accelerate.devices``."""
    _own[backend.type] = backend


@cache
def _table() -> dict[str, DeviceBackend]:
    rows: list[DeviceBackend] = []
    for entry in entry_points(group="accelerate.devices"):
        found = entry.load()
        rows.append(found() if isinstance(found, type) else found)
    rows += [XlaBackend(), *(VendorBackend(row) for row in ROWS), CpuBackend()]
    table: dict[str, DeviceBackend] = {}
    for backend in rows:
        table.setdefault(backend.type, backend)
    return table


def kinds() -> tuple[DeviceBackend, ...]:
    """Every known kind of device, most preferred first; the CPU is last."""
    return tuple({**_own, **_table()}.values())


def get(type: str) -> DeviceBackend:
    """The backend of one kind of device ("cuda", "cpu", …), whether or not this machine has one.

    Raises:
        DeviceError: no such kind is known.
    """
    backend = _own.get(type) or _table().get(type)
    if backend is None:
        known = ", ".join(sorted(row.type for row in kinds()))
        raise DeviceError(
            f"Device type {type!r} is not known. Known are {known}; another one is added with "
            "accelerate.devices.register() or the entry-point group accelerate.devices."
        )
    return backend


def requested() -> str | None:
    """The device that ACCELERATE_TORCH_DEVICE names ("cuda:1"), or None."""
    return env.get("ACCELERATE_TORCH_DEVICE") or None


def choose(cpu: bool = False) -> DeviceBackend:
    """The kind of device this process trains on: the CPU where ``cpu`` or ACCELERATE_USE_CPU asks for it, else what
    ACCELERATE_TORCH_DEVICE names, else the first kind that this machine has.

    Raises:
        DeviceError: ACCELERATE_TORCH_DEVICE names a kind that this machine has not.
    """
    if cpu or env.flag("ACCELERATE_USE_CPU"):
        return get("cpu")
    wanted = requested()
    if wanted is not None:
        backend = get(wanted.partition(":")[0])
        if not backend.is_available():
            there = ", ".join(row.type for row in kinds() if row.is_available())
            raise DeviceError(
                f"ACCELERATE_TORCH_DEVICE={wanted!r} asks for a device that this machine has not. It has: {there}."
            )
        return backend
    return next(backend for backend in kinds() if backend.is_available())
