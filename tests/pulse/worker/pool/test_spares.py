"""Spares that cannot be started, and processes that are dismissed before they are there."""

from __future__ import annotations

import os
import subprocess
from typing import Any, NoReturn

import anyio
import pytest
import structlog
from structlog.testing import CapturedCall, CapturingLogger

from pulse.system import processes
from pulse.worker.options import PoolOptions
from pulse.worker.pool.child import Child
from pulse.worker.pool.forks import Forks
from pulse.worker.pool.spares import Spares

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def no_more_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def popen(*_: object, **__: object) -> NoReturn:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", popen)


async def test_a_spare_that_cannot_be_started() -> None:
    log: Any = CapturingLogger()
    async with anyio.create_task_group() as group:
        spares = Spares(PoolOptions(app="x:y", spares=3, preload=False), group, log)
        before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
        spares.refill()
        with pytest.raises(BlockingIOError, match="no more processes"):
            await spares.take()
        assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
        await spares.wait_dismissed()
        spares.refill()
    assert log.calls == [CapturedCall("warning", ("spare_died",), {"cause": "cannot be started: no more processes"})]


async def test_a_process_that_is_forked_while_all_are_dismissed_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    forked = Forked()
    async with anyio.create_task_group() as group:
        spares = Spares(PoolOptions(app="x:y", preload=False), group, structlog.get_logger())

        async def take() -> Forked:
            spares.dismiss()
            return forked

        monkeypatch.setattr(spares._forks, "take", take)
        assert await spares.take() is None
    assert forked.kills == 1


class Forked:
    kills = 0

    def kill_all(self) -> None:
        self.kills += 1


@pytest.mark.parametrize("why", ["off", "dismissed"])
async def test_no_template_is_started_for_nothing(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "adopt_orphans", lambda: True)
    async with anyio.create_task_group() as group:
        forks = Forks(PoolOptions(app="x:y", preload=why != "off"), group, structlog.get_logger(), own=_own)
        if why == "dismissed":
            forks.dismiss()
        assert await forks.take() is None


def _own(child: Child) -> Child:
    return child
