"""Connections that cannot be accepted, for want of descriptors; the chaos run takes them from a real dispatcher."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from structlog.testing import capture_logs

from pulse.config import Settings
from pulse_actors.dispatcher.net.listener import ACCEPT_PAUSE_S, OWN_DESCRIPTORS, Listener, check_descriptors
from tests.support.checking.descriptors import free_descriptors

pytestmark = pytest.mark.anyio


class Full:
    """A listener without a descriptor for new connections, in each of the ways to say so; and then with one."""

    def __init__(self) -> None:
        self.errors: list[Exception] = [OSError(errno.EMFILE, "Too many open files"), anyio.BrokenResourceError()] * 2
        self.has_come = False
        self.errors[1].__cause__ = OSError(errno.ENFILE, "Too many open files in system")

    async def accept(self) -> object:
        if self.errors:
            raise self.errors.pop(0)
        if self.has_come:
            await anyio.sleep_forever()
        self.has_come = True
        return "somebody"


async def test_accept_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    came = anyio.Event()

    async def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        await anyio.lowlevel.checkpoint()

    async def attend(_stream: object, _number: int) -> None:
        came.set()

    monkeypatch.setattr(anyio, "sleep", sleep)
    reception = Listener(cast("Any", SimpleNamespace(host=None)), Settings())
    monkeypatch.setattr(reception, "_attend_local", attend)
    with capture_logs() as logs, anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reception.serve, cast("Any", Full()))
            await came.wait()
            tasks.cancel_scope.cancel()
    assert pauses == [ACCEPT_PAUSE_S] * 4
    assert [line["error"] for line in logs] == [
        "[Errno 24] Too many open files",
        "[Errno 23] Too many open files in system",
    ] * 2


def test_some_descriptors_are_no_connections() -> None:
    with free_descriptors(OWN_DESCRIPTORS):
        check_descriptors()
    with free_descriptors(OWN_DESCRIPTORS - 1), pytest.raises(OSError, match=f"{OWN_DESCRIPTORS} of .* are kept"):
        check_descriptors()
