"""Ports of this machine."""

from __future__ import annotations

import errno
import socket

from accelerate.errors import LaunchError

__all__ = ["claim", "free_port", "in_use", "is_this_machine"]


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
    return port


def in_use(port: int) -> bool:
    """Whether something on this machine has bound ``port``."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                # What torch's store sets too: a port of a job that just ended counts as free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return True
    return False


def claim(port: int | None) -> int:
    """``port`` where it is free, or any free one for None and 0.

    Raises:
        LaunchError: it is taken.
    """
    if not port:
        return free_port()
    if in_use(port):
        raise LaunchError(
            f"Port {port} was asked for (--main_process_port), but something on this machine is using it, perhaps an "
            "earlier job that is still running. End that, name another port, or leave the port out to get a free one."
        )
    return port


def is_this_machine(address: str) -> bool:
    """Whether ``address`` is one of this machine's own. A name that cannot be resolved is not."""
    if address in ("localhost", "127.0.0.1", "::1"):
        return True
    try:
        found = {info[4][0] for info in socket.getaddrinfo(address, None)}
    except OSError:
        return False
    for candidate in found:
        family = socket.AF_INET6 if ":" in str(candidate) else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind((candidate, 0))
        except OSError:
            continue
        return True
    return False
