"""The pumps: all whole frames are delivered, in order, before the error that the connection is broken."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream
from msgspec import structs

from pulse.client.async_transport import Exchange, FrameStream, dial
from pulse.client.discovery import ConnectionLostError, Remote
from pulse.client.requests import simple
from pulse.client.transport import BlockingExchange
from pulse.errors import ProtocolError
from pulse.protocol import Welcome, encode
from pulse_actors.runtime.bus import Bus

WELCOME = Welcome(1, "here", 10.0, 30.0, 2**20)
PAIR = encode("ping", 1, {}) + encode("ping", 2, {})
NONE = b"\0\0\0\0"  # a frame of no bytes


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize(("tail", "error", "said"), [
    (NONE, ProtocolError, "a frame of length 0"),
    (PAIR[:5], ConnectionLostError, "the other side closed the connection"),
], ids=["no protocol", "half a frame"])  # fmt: skip
async def test_whole_frames_before_a_break_arrive(
    ends: tuple[socket.socket, socket.socket], tail: bytes, error: type[Exception], said: str
) -> None:
    """In one piece with the break; later requests get the same error, at once."""
    one, other = ends
    other.sendall(PAIR + tail)
    if tail != NONE:
        other.close()
    async with await SocketStream.from_socket(one) as stream:
        frames = FrameStream(stream)
        with anyio.fail_after(5):
            assert [frame.request for frame in await frames.receive()] == [1, 2]
            for _ in range(2):
                with pytest.raises(error, match=said):
                    await frames.receive()


@pytest.mark.anyio
@pytest.mark.parametrize(("said", "error"), [(NONE, ProtocolError), (None, ConnectionLostError)])
async def test_why_a_connection_broke_decides_whether_asking_again_helps(
    ends: tuple[socket.socket, socket.socket], said: bytes | None, error: type[Exception]
) -> None:
    """Of what would end the same way each asker hears at once; a lost connection is renewed."""
    one, other = ends
    async with await SocketStream.from_socket(one) as stream:
        exchange = Exchange(FrameStream(stream), WELCOME)
        if said is None:
            other.close()
        else:
            other.sendall(said)
        with anyio.fail_after(5):
            for _ in range(2):
                with pytest.raises(error):
                    await exchange.ask(simple("ping"))


@pytest.mark.anyio
async def test_a_server_without_tls() -> None:
    async def welcome(peer: SocketStream) -> None:
        async with peer:
            await peer.receive()
            await peer.send(encode("welcome", 0, structs.asdict(WELCOME)))

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, welcome)
        port = listener.extra(SocketAttribute.local_port)
        with anyio.fail_after(5):
            stream, welcomed = await dial([Remote("tcp", "127.0.0.1", port)], {"role": "client"})
        await stream.aclose()
        assert welcomed == WELCOME
        tasks.cancel_scope.cancel()


def test_whole_frames_before_a_break_arrive_at_who_blocks(ends: tuple[socket.socket, socket.socket]) -> None:
    one, other = ends
    exchange = BlockingExchange(one)
    other.sendall(PAIR + NONE)
    deadline_s = time.monotonic() + 5
    assert [frame.request for frame in exchange.receive(deadline_s)] == [1, 2]
    assert not exchange.broken
    with pytest.raises(ProtocolError, match="a frame of length 0"):
        exchange.receive(deadline_s)
    assert exchange.broken


@pytest.mark.anyio
async def test_whole_frames_before_a_break_arrive_on_the_bus(ends: tuple[socket.socket, socket.socket]) -> None:
    one, other = ends
    other.sendall(PAIR + NONE)
    async with await SocketStream.from_socket(one) as stream:
        with anyio.fail_after(5):
            assert [frame.request async for frame in Bus(stream).frames()] == [1, 2]
