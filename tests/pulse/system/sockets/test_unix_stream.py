"""A Unix socket on asyncio: what arrives is read once, by the task that waits, and waiting is registered once."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
import uvloop
from anyio.abc import SocketAttribute, UNIXSocketStream
from anyio.lowlevel import checkpoint

from pulse.system.sockets.unix_stream import UnixStream, of_unix_socket
from tests.support.checking.loops import LOOPS
from tests.support.waiting import until_async

pytestmark = [pytest.mark.anyio, pytest.mark.timed]

LONG = bytes(range(256)) * 8192  # 2 MiB: more than a socket takes


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[UnixStream, socket.socket]]:
    """The stream, and the other end."""
    own, other = socket.socketpair()
    other.setblocking(False)
    with other:
        async with of_unix_socket(await UNIXSocketStream.from_socket(own)) as stream:
            assert isinstance(stream, UnixStream)
            with anyio.fail_after(5):
                yield stream, other


async def read(other: socket.socket, count: int) -> bytes:
    """At least *count* bytes that the stream has sent."""
    data = b""
    while len(data) < count:
        await anyio.wait_readable(other)
        data += other.recv(65536)
    return data


@LOOPS
async def test_waiting_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, registered = asyncio.get_running_loop(), list[object]()
    add_reader = loop.add_reader

    def count(fd: Any, *args: Any) -> None:
        registered.append(fd)
        add_reader(fd, *args)

    async with connected() as (stream, other):
        monkeypatch.setattr(loop, "add_reader", count)
        for number in range(50):
            loop.call_soon(other.send, b"%d" % number)
            assert await stream.receive() == b"%d" % number
        assert len(registered) == 1


@LOOPS
async def test_what_nobody_waits_for_stays_in_the_kernel() -> None:
    """And the loop does not turn for it; who waits later gets it."""
    async with connected() as (stream, other):
        asyncio.get_running_loop().call_soon(other.send, b"one")
        assert await stream.receive() == b"one"
        assert stream._loop is not None
        other.send(b"two")
        await until_async(lambda: stream._loop is None, "the loop does not watch it")
        assert stream.extra(SocketAttribute.raw_socket).recv(10, socket.MSG_PEEK) == b"two"
        assert await stream.receive() == b"two"


@LOOPS
async def test_a_cancelled_receive_loses_nothing() -> None:
    """Not even what was read for it in the turn in which it was cancelled; nor does the next get more than it asked."""
    async with connected() as (stream, other):
        receiving = asyncio.create_task(stream.receive())
        await checkpoint()
        other.send(b"kept")
        stream.readable()
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        assert [await stream.receive(3), await stream.receive(3)] == [b"kep", b"t"]
        with anyio.move_on_after(0):
            await stream.receive()
        other.send(b"more")
        assert await stream.receive() == b"more"


@LOOPS
async def test_what_comes_before_the_task_has_its_turn_stays_in_the_kernel() -> None:
    async with connected() as (stream, other):
        receiving = asyncio.create_task(stream.receive())
        await checkpoint()
        for part in (b"one", b"two"):
            other.send(part)
            stream.readable()
        assert [await receiving, await stream.receive()] == [b"one", b"two"]


@LOOPS
async def test_how_a_connection_ends() -> None:
    async with connected() as (stream, other):
        other.send(b"last")
        other.close()
        assert await stream.receive() == b"last"
        for _ in range(2):
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()
        with pytest.raises(anyio.BrokenResourceError):
            await stream.send(b"nobody reads this")


@LOOPS
@pytest.mark.parametrize("is_waiting", [False, True])
async def test_what_was_written_before_a_reset_is_read(*, is_waiting: bool) -> None:
    """The other side died with bytes that it had not read: after that uvloop watches the socket no more."""
    async with connected() as (stream, other):
        await stream.send(b"which nobody reads")
        receiving = asyncio.create_task(stream.receive(4))
        if is_waiting:
            await until_async(lambda: stream._receiving is not None, "it waits")
        other.send(b"last words")
        other.close()
        assert [await receiving, await stream.receive(4), await stream.receive(4)] == [b"last", b" wor", b"ds"]
        with pytest.raises(anyio.BrokenResourceError):
            await stream.receive()
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()


@LOOPS
async def test_waking_without_bytes_is_no_end() -> None:
    async with connected() as (stream, other):
        receiving = asyncio.create_task(stream.receive())
        await until_async(lambda: stream._receiving is not None, "it waits")
        stream.readable()
        await until_async(lambda: stream._loop is not None, "it waits again")
        other.send(b"one")
        assert await receiving == b"one"


@LOOPS
async def test_the_number_of_a_closed_socket_may_be_used_again() -> None:
    """Closed while one task waits to read and one to write: neither is known to the loop any more."""
    async with connected() as (old, _), anyio.create_task_group() as tasks:
        number = old.extra(SocketAttribute.raw_socket).fileno()
        for call in (old.receive, partial(old.send, LONG)):
            tasks.start_soon(_closed, call)
        await anyio.wait_all_tasks_blocked()
        await old.aclose()
        async with connected() as (new, other):
            assert new.extra(SocketAttribute.raw_socket).fileno() == number
            tasks.start_soon(new.send, LONG)
            assert await read(other, len(LONG)) == LONG
            receiving = asyncio.create_task(new.receive())
            await until_async(lambda: new._receiving is not None, "it waits")
            other.send(b"one")
            assert await receiving == b"one"


async def _closed(call: Callable[[], Coroutine[Any, Any, object]]) -> None:
    with pytest.raises(anyio.ClosedResourceError):
        await call()


@LOOPS
async def test_a_stream_that_its_owner_drops_is_closed() -> None:
    own, other = socket.socketpair()
    other.setblocking(False)
    with other:
        stream = of_unix_socket(await UNIXSocketStream.from_socket(own))
        asyncio.get_running_loop().call_soon(other.send, b"one")
        assert await stream.receive() == b"one"
        del own
        with pytest.warns(ResourceWarning, match="unclosed"):
            del stream
        with anyio.fail_after(5):
            await anyio.wait_readable(other)
        assert other.recv(1) == b""


@LOOPS
async def test_two_tasks_cannot_send_at_a_time() -> None:
    async with connected() as (stream, other), anyio.create_task_group() as tasks:
        tasks.start_soon(stream.send, LONG)
        await anyio.wait_all_tasks_blocked()
        begun = other.recv(200_000)  # there is room now
        for _ in range(2):
            assert stream.send_now(b"x") == 0
            with pytest.raises(anyio.BusyResourceError):
                await stream.send(b"x")
        assert begun + await read(other, len(LONG) - len(begun)) == LONG


@LOOPS
async def test_who_waits_is_told_that_it_was_closed_here() -> None:
    closed = list[bool]()

    async def receive(stream: UnixStream) -> None:
        with pytest.raises(anyio.ClosedResourceError):
            await stream.receive()
        closed.append(True)

    async with connected() as (stream, _), anyio.create_task_group() as tasks:
        tasks.start_soon(receive, stream)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            await stream.receive()
        await stream.aclose()
        await receive(stream)
        with pytest.raises(anyio.ClosedResourceError):
            await stream.send(b"x")
    assert closed == [True, True]


@LOOPS
async def test_what_the_socket_does_not_take_at_once_is_sent_later() -> None:
    async with connected() as (stream, other):
        at_once = stream.send_now(LONG)
        assert 0 < at_once < len(LONG)
        assert stream.send_now(b"no room") == 0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.send, LONG[at_once:])
            await anyio.wait_all_tasks_blocked()
            assert await read(other, len(LONG)) == LONG
        await stream.send_eof()
        assert other.recv(1) == b""


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_another_loop_may_go_on_with_it(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    streams = list[UnixStream]()
    own, other = socket.socketpair()

    async def begin() -> None:
        stream = of_unix_socket(await UNIXSocketStream.from_socket(own))
        assert isinstance(stream, UnixStream)
        streams.append(stream)
        asyncio.get_running_loop().call_soon(other.send, b"one")
        assert await stream.receive() == b"one"
        assert stream._loop is not None

    async def go_on() -> None:
        (stream,) = streams
        asyncio.get_running_loop().call_soon(other.send, b"two")
        with anyio.fail_after(5):
            assert await stream.receive() == b"two"
            await stream.send(b"three")
        assert other.recv(10) == b"three"

    async def end() -> None:
        await streams[0].aclose()

    with other:
        for part in (begin, go_on, end):
            run(part())
        assert other.recv(10) == b""


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_on_trio_it_is_as_it_was(anyio_backend: str) -> None:
    own, other = socket.socketpair()
    with other:
        async with await UNIXSocketStream.from_socket(own) as stream:
            assert of_unix_socket(stream) is stream, anyio_backend
