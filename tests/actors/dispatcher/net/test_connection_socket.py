"""A peer's connection on a real socket: what is written at once, and what a dead peer wrote."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import AsyncIterator
from typing import Final

import anyio
import pytest

from pulse import protocol
from pulse.system.sockets.unix_stream import of_unix_socket
from pulse_actors.dispatcher.admission.memory_budget import MemoryBudget
from pulse_actors.dispatcher.admission.request_limits import MISTAKES_A_SECOND
from pulse_actors.dispatcher.net.connection import UNREAD_BYTES, PeerConnection
from tests.support.checking.loops import LOOPS
from tests.support.waiting import until_async

pytestmark = [pytest.mark.anyio, pytest.mark.timed]

WORDS: Final = b"".join(protocol.encode("ping", number, {}) for number in range(5000))  # more than is read at once
HALF: Final = protocol.encode("submit", 1, {"args": "x" * 900})[:700]


class Heard(list[int]):
    def __init__(self, connection: PeerConnection, other: socket.socket) -> None:
        super().__init__()
        self.connection, self.other = connection, other

    async def listen(self) -> None:
        async for group in self.connection.frames():
            self.extend(frame.request or 0 for frame in group)
        self.connection.hear_no_more()

    async def end(self) -> None:
        with anyio.fail_after(5):
            await self.connection.hear_out()


@contextlib.asynccontextmanager
async def listening(begun: MemoryBudget | None = None) -> AsyncIterator[Heard]:
    """To a peer on a real socket, which another process holds when it has died."""
    other, own = socket.socketpair()
    other.setblocking(False)
    with other:
        async with of_unix_socket(await anyio.abc.UNIXSocketStream.from_socket(own)) as stream:
            yield Heard(PeerConnection(stream, 2**30, begun=begun), other)


async def written(other: socket.socket, count: int, begun: bytes = b"") -> list[int | None]:
    """The numbers of the next *count* frames, of which *begun* has been read."""
    reader, got = protocol.FrameReader(), list[int | None]()
    assert reader.feed(begun) == []
    with anyio.fail_after(5):
        while len(got) < count:
            await anyio.wait_readable(other)
            got += [frame.request for frame in reader.feed(other.recv(65536))]
    return got


@LOOPS
async def test_what_is_pushed_is_written_before_anything_else_has_its_turn() -> None:
    """As far as the socket takes it; the rest follows, once, in its order."""
    async with listening() as heard:
        connection, other = heard.connection, heard.other
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection.write)
            connection.send("ok", 0, {})
            connection.push()
            assert connection.backlog_bytes == 0
            for number in range(1, 5):
                connection.send("ok", number, {"text": "x" * 400_000})
                connection.push()
            assert 0 < connection.backlog_bytes < 1_600_000
            assert await written(other, 5) == [0, 1, 2, 3, 4]
            await until_async(lambda: connection.backlog_bytes == 0, "all is written")
            other.close()
            connection.send("ok", 5, {})
            connection.push()  # the next write meets the error
            connection.hear_no_more()
        assert connection.is_cut


@LOOPS
async def test_nothing_is_pushed_into_a_frame_that_is_being_written() -> None:
    async with listening() as heard, anyio.create_task_group() as tasks:
        connection = heard.connection
        tasks.start_soon(connection.write)
        connection.send("ok", 0, {"text": "x" * 1_000_000})
        await anyio.wait_all_tasks_blocked()  # its task waits for room in the socket
        await anyio.wait_readable(heard.other)
        begun = heard.other.recv(400_000)
        connection.send("ok", 1, {})
        connection.push()
        assert await written(heard.other, 2, begun) == [0, 1]
        connection.hear_no_more()
        connection.close()


async def test_nothing_follows_a_frame_of_which_only_a_part_was_written() -> None:
    """The connection is closed, and what was queued behind the frame is not sent. Not on uvloop: anyio fails there."""
    async with listening() as heard:
        connection, other, read = heard.connection, heard.other, b""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection.write)
            connection.send("ok", 0, {"text": "x" * 1_000_000})
            await anyio.wait_all_tasks_blocked()  # its task waits for room in the socket
            connection.send("ok", 1, {"text": "y"})
            tasks.cancel_scope.cancel()
            read += other.recv(200_000)  # there is room now
        while data := other.recv(65536):
            read += data
        assert b"y" not in read
        assert len(read) < 1_000_000


@LOOPS
@pytest.mark.parametrize("is_held_up", [False, True])
async def test_what_was_written_before_a_reset_is_heard(*, is_held_up: bool) -> None:
    """A peer that dies with unread bytes: after that uvloop watches its socket no more."""
    async with listening() as heard, anyio.create_task_group() as tasks:
        connection = heard.connection
        tasks.start_soon(connection.write)
        tasks.start_soon(heard.listen)
        connection.send("assign", None, {"jobs": "x" * (3_000_000 if is_held_up else 10)})
        await anyio.wait_all_tasks_blocked()
        heard.other.sendall(WORDS)
        heard.other.close()
        await heard.end()
        assert heard == list(range(5000))
        connection.close()


@LOOPS
@pytest.mark.parametrize("half", [b"", HALF])
async def test_all_that_a_dead_peer_wrote_is_heard_at_once(half: bytes) -> None:
    """It is in the socket: the dispatcher reads it without waiting for the end."""
    async with listening() as heard, anyio.create_task_group() as tasks:
        heard.other.sendall(WORDS + half)
        tasks.start_soon(heard.listen)
        await heard.end()
        assert heard == list(range(5000))
        with pytest.raises(BrokenPipeError, match="Broken pipe"):
            heard.other.send(b"what a child of it says")
        await heard.connection._stream.aclose()
        await heard.end()  # it has ended already


@LOOPS
async def test_what_a_peer_wrote_before_it_died_has_its_time() -> None:
    over = list[int]()
    async with listening() as heard, anyio.create_task_group() as tasks:
        heard.other.sendall(WORDS)

        async def end() -> None:
            await heard.end()
            over.extend(heard)

        tasks.start_soon(end)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(heard.listen)
    assert over == list(range(5000))


@LOOPS
@pytest.mark.parametrize("is_waiting", [False, True])
@pytest.mark.parametrize("by", ["others have the room", "mistakes", "answers that it does not read"])
async def test_a_dead_peer_is_heard_whatever_held_it_up(by: str, *, is_waiting: bool) -> None:
    """Its unfinished frame is dropped; a living one is read slowly, or not at all."""
    room = MemoryBudget(1500)
    assert room.try_reserve(1500)
    async with listening(room) as heard, anyio.create_task_group() as tasks:
        heard.other.sendall(WORDS + (HALF if by == "others have the room" else b""))
        if by == "mistakes":
            for _ in range(100 * int(MISTAKES_A_SECOND)):  # a hundred seconds of them
                heard.connection.limits.mistake(time.monotonic())
        if by == "answers that it does not read":
            heard.connection.send("ok", None, {"text": "x" * (UNREAD_BYTES + 1)})
        tasks.start_soon(heard.listen)
        if is_waiting:
            await anyio.wait_all_tasks_blocked()
            assert by == "others have the room" or len(heard) < 5000
        await heard.end()
        assert heard == list(range(5000))
