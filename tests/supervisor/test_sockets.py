"""Where the supervisor listens."""

from __future__ import annotations

import socket

import pytest

from pulse.errors import PathError
from pulse_supervisor.sockets import _listen_tcp


def test_an_address_that_is_none() -> None:
    with pytest.raises(PathError, match="host:port is allowed"):
        _listen_tcp("nowhere", None)


def test_a_socket_that_was_handed_over_is_kept() -> None:
    with socket.create_server(("127.0.0.1", 0)) as handed:
        assert _listen_tcp(f"127.0.0.1:{handed.getsockname()[1]}", handed) is handed
