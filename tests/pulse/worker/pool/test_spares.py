"""Spares that cannot be started."""

from __future__ import annotations

import os
import subprocess
from typing import NoReturn

import anyio
import pytest

from pulse.worker.options import PoolOptions
from pulse.worker.pool.spares import Spares

pytestmark = pytest.mark.anyio


class Log:
    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, /, **facts: object) -> None:
        self.told.append((event, facts))

    warning = info


async def test_a_spare_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def popen(*_: object, **__: object) -> NoReturn:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", popen)
    log = Log()
    async with anyio.create_task_group() as group:
        spares = Spares(PoolOptions(app="x:y", spares=3, preload=False), group, log)
        before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
        spares.refill()
        with pytest.raises(BlockingIOError, match="no more processes"):
            await spares.take()
        assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
        await spares.wait_dismissed()
        spares.refill()
    assert log.told == [("spare_died", {"cause": "cannot be started: no more processes"})]
