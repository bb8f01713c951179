"""Where the supervisor listens."""

from __future__ import annotations

import pytest

from pulse.errors import PathError
from pulse_supervisor.sockets import _listen_tcp


def test_an_address_that_is_none() -> None:
    with pytest.raises(PathError, match="host:port is allowed"):
        _listen_tcp("nowhere", None)
