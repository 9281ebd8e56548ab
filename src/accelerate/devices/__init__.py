"""Devices: one table, a row a vendor."""

from __future__ import annotations

from accelerate.devices.base import DeviceBackend, MemoryPort, RngPort
from accelerate.devices.registry import choose, get, kinds, register, requested

__all__ = ["DeviceBackend", "MemoryPort", "RngPort", "choose", "get", "kinds", "register", "requested"]
