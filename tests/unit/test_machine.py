"""Questions about the machine."""

from __future__ import annotations

import logging
import platform
import socket
from types import SimpleNamespace

import pytest

from accelerate.machine import check_os_kernel, is_port_in_use


def test_port_in_use() -> None:
    with socket.socket() as server:
        server.bind(("localhost", 0))
        port = server.getsockname()[1]
        assert not is_port_in_use(port)  # bound, but nobody listens
        server.listen()
        assert is_port_in_use(port) and is_port_in_use(str(port))
    assert not is_port_in_use(port)


def test_default_port_is_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(socket.socket, "connect_ex", lambda self, address: asked.append(address) or 1)
    assert not is_port_in_use()
    assert asked == [("localhost", 29500)]


@pytest.mark.parametrize(
    ("system", "release", "warned"),
    [
        ("Linux", "5.4.0-150-generic", True),
        ("Linux", "4.18.0", True),
        ("Linux", "5.5", False),
        ("Linux", "6.1.0", False),
        ("Darwin", "4.0.0", False),
        ("Linux", "custom", False),
    ],
)
def test_old_kernels_are_said(
    system: str, release: str, warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(platform, "uname", lambda: SimpleNamespace(system=system, release=release))
    with caplog.at_level(logging.WARNING):
        check_os_kernel()
    assert (f"runs Linux {release}" in caplog.text) is warned
