"""A request that is made in a thread of its own."""

from __future__ import annotations

import threading

import pytest

from pulse.errors import BadRequestError, NobodyAnswersError
from pulse.ops.status import TimedCall


def test_a_call_ends_as_its_request_does() -> None:
    refused, stuck = BadRequestError("no"), threading.Event()

    def refuse() -> dict[str, object]:
        raise refused

    def fail() -> dict[str, object]:
        message = "broken"
        raise ValueError(message)

    def wait() -> dict[str, object]:
        stuck.wait()
        return {}

    assert TimedCall(lambda: {"a": 1}, 10.0).answer() == {"a": 1}
    assert TimedCall(refuse, 10.0).answer() is refused
    with pytest.raises(ValueError, match="broken"):
        TimedCall(fail, 10.0).answer()
    assert isinstance(TimedCall(wait, 0.01).answer(), NobodyAnswersError)
    stuck.set()
