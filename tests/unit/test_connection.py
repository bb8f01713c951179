"""A peer's connection, as the dispatcher writes to it."""

from __future__ import annotations

from typing import Any, cast

import anyio
import pytest

from pulse_actors.dispatcher.connection import Connection
from pulse_actors.dispatcher.desk import BACKLOG_BYTES

pytestmark = pytest.mark.anyio


class Pipe:
    """A stream whose other end reads when it is told to."""

    def __init__(self) -> None:
        self.reads = anyio.Event()

    async def send(self, _data: bytes) -> None:
        """Wait until it is read."""
        await self.reads.wait()

    async def aclose(self) -> None:
        """There is nothing to close."""


@pytest.mark.parametrize("size", [BACKLOG_BYTES + 1, 1])
async def test_a_backlog_that_was_read_is_told(size: int) -> None:
    """Whoever kept back because of it goes on; a short one kept nobody back."""
    pipe, told = Pipe(), list[int]()
    connection = Connection(cast("Any", pipe), 2**30)
    connection.relieved = lambda: told.append(connection.backlog_bytes)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.write)
        connection.send("assign", None, {"jobs": ["x" * size]})
        await anyio.wait_all_tasks_blocked()
        assert told == []
        connection.send("assign", None, {"jobs": []})
        pipe.reads.set()
        await anyio.wait_all_tasks_blocked()
        assert len(told) == (size > BACKLOG_BYTES)
        assert all(backlog <= BACKLOG_BYTES for backlog in told)
        connection.heard_out.set()
        connection.close()
