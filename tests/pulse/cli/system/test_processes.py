"""When a drain is over, by what the server says."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pulse.cli.server import ServerHandle
from pulse.cli.system.processes import _left

BUSY = {"draining": True, "running": [bytes(16)] * 2}


class Draining:
    """A server with these pools and workers."""

    def __init__(self, pools: list[dict[str, Any]], workers: list[dict[str, Any]]) -> None:
        self._pools = pools
        self._workers = workers

    def ask_supervisor(self, _kind: str) -> dict[str, object]:
        return {"pools": self._pools}

    def ask(self, _kind: str, *, repeatable: bool) -> dict[str, object]:
        assert repeatable
        return {"workers": self._workers}


@pytest.mark.parametrize(("pools", "workers", "everyone", "left"), [
    ([], [], False, ""), ([{"pid": None}], [BUSY], False, ""),
    ([{"pid": 7}], [], False, "0 jobs at 0 workers not finished yet"),
    ([{"pid": 7}], [BUSY, {"draining": False}], False, "2 jobs at 1 worker not finished yet"),
    ([], [BUSY, {"draining": False}], True, "2 jobs at 2 workers not finished yet"),
])  # fmt: skip
def test_what_is_left(pools: list[dict[str, Any]], workers: list[dict[str, Any]], everyone: bool, left: str) -> None:
    """A pool that has not ended is not finished, whatever it holds; workers of others count only if they were asked."""
    assert _left(cast("ServerHandle", Draining(pools, workers)), everyone=everyone) == left
