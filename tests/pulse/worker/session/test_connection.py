"""One connection of a handler process: a server that is silent, and what it refuses."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import anyio
import pytest
from anyio.abc import SocketStream
from structlog.testing import CapturedCall, CapturingLogger

from pulse.client.async_transport import FrameStream
from pulse.client.discovery import ConnectionLostError
from pulse.errors import PulseError
from pulse.protocol import Frame, FrameReader, Welcome, encode
from pulse.worker.session.connection import Connection
from tests.pulse.worker.session.test_ledger import ROOM, ledger

pytestmark = pytest.mark.anyio

DECLARED: Final[Mapping[str, dict[str, object]]] = {"limits.declare": {"limits": []}}


class Owner:
    def about_to_start(self) -> None:
        """Nothing is given back."""


class Made:
    """A connection, and the server's end of it."""

    def __init__(self, stream: SocketStream, server: SocketStream) -> None:
        self.log: Any = CapturingLogger()
        welcome = Welcome(1, "here", heartbeat_s=0.1, lease_s=30.0, max_frame_bytes=ROOM)
        owner: Any = Owner()
        self.connection = Connection(FrameStream(stream), welcome, ledger(), owner, self.log, DECLARED)
        self.server = FrameStream(server)

    def sent(self) -> list[tuple[str, int | None]]:
        """What it would write now."""
        frames = FrameReader(ROOM).feed(b"".join(self.connection._out))
        self.connection._out.clear()
        return [(one.kind, one.request) for one in frames]

    def refuse(self, number: int | None, code: str) -> None:
        (frame,) = FrameReader(ROOM).feed(encode("error", number, {"code": code, "message": "no"}))
        self.connection._take(frame)


@pytest.fixture
async def made() -> AsyncIterator[Made]:
    here, there = socket.socketpair()
    async with await SocketStream.from_socket(here) as stream, await SocketStream.from_socket(there) as server:
        yield Made(stream, server)


async def test_a_server_that_is_silent_for_three_heartbeats_is_left(made: Made) -> None:
    frames: list[Frame] = []
    errors: list[PulseError] = []

    async def read() -> None:
        with contextlib.suppress(ConnectionLostError):
            while sum(one.kind == "heartbeat" for one in frames) < 4:
                frames.extend(await made.server.receive())
        lost.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        with anyio.CancelScope() as lost:
            errors.append(await made.connection.run())
    assert [one.message for one in errors] == ["nothing was heard for 3 heartbeats"]
    assert [one.kind for one in frames].count("heartbeat") == 3


async def test_a_heartbeat_that_the_server_cannot_store_holds_up_no_report(made: Made) -> None:
    """It counts as answered: no ping goes with the next one."""
    made.connection._send_beat(0.0)
    assert made.sent() == [("heartbeat", 1)]
    made.refuse(1, "unavailable")
    assert made.connection._reports_from_s is None
    made.connection._send_beat(1.0)
    assert made.sent() == [("heartbeat", 2)]
    assert made.log.calls == []


async def test_a_declaration_that_the_server_refuses(made: Made) -> None:
    """For good: that is logged. For now: it goes with the next heartbeat, and no report waits for it."""
    made.connection._tell_again()
    assert made.sent() == [("limits.declare", 1)]
    made.refuse(1, "unavailable")
    assert made.connection._reports_from_s is None
    made.connection._send_beat(0.0)
    assert made.sent() == [("limits.declare", 2), ("heartbeat", 3)]
    made.refuse(2, "bad_request")
    facts = {"kind": "limits.declare", "code": "bad_request", "cause": "no"}
    assert made.log.calls == [CapturedCall("warning", ("declaration_refused",), facts)]
