"""Why nobody can listen at an address, in the words of a message."""

from __future__ import annotations

import errno
import socket

import pytest

from pulse.system.sockets import listeners


@pytest.mark.parametrize(("error", "said"), [
    (OSError("No Such Place"), "no such place"),
    (socket.gaierror(-2, "Name or service not known"), "name or service not known"),
    (OSError(errno.EADDRINUSE, "x", "127.0.0.1"), "address already in use"),
], ids=["no number", "a name", "a number"])  # fmt: skip
def test_reason(error: OSError, said: str) -> None:
    assert listeners.reason(error) == said
