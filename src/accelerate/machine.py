"""Questions about the machine this process runs on."""

from __future__ import annotations

import platform
import re
import socket

from accelerate.logging import get_logger

__all__ = ["check_os_kernel", "is_port_in_use"]

logger = get_logger(__name__)

_DEFAULT_PORT = 29500
_OLDEST_KERNEL = (5, 5, 0)


def is_port_in_use(port: int | str | None = None) -> bool:
    """Whether something on this machine listens on a port (default: 29500, torch's own)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(("localhost", int(port if port is not None else _DEFAULT_PORT))) == 0


def check_os_kernel() -> None:
    """Warns about a Linux kernel older than 5.5, under which processes were seen to hang."""
    system = platform.uname()
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", system.release)
    if system.system != "Linux" or match is None:
        return
    if tuple(int(part or 0) for part in match.groups()) < _OLDEST_KERNEL:
        logger.warning(
            f"This machine runs Linux {system.release}. Kernels before 5.5.0 can make training processes hang; "
            "upgrade to 5.5.0 or newer."
        )
