"""The pumps: all whole frames are delivered, in order, before the error that the connection is broken."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream
from msgspec import structs

from pulse.client import async_transport
from pulse.client.async_transport import Exchange, FrameStream, _connected, dial
from pulse.client.control_requests import simple
from pulse.client.discovery import ConnectionLostError, LocalSocket, Remote
from pulse.client.transport import BlockingExchange, _left_s
from pulse.errors import ForbiddenError, NobodyAnswersError, ProtocolError
from pulse.protocol import FrameReader, Welcome, encode, encode_error
from pulse.system.sockets.unix_stream import UnixStream
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
async def test_a_socket_of_this_machine_stays_registered(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        async with await _connected(LocalSocket(tmp_path / "socket", named=True)) as stream:
            assert isinstance(stream, UnixStream)


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
async def test_an_error_of_no_request_is_that_of_all(ends: tuple[socket.socket, socket.socket]) -> None:
    """The server sends it before it closes; other frames that nobody has asked for are passed over."""
    one, other = ends
    async with await SocketStream.from_socket(one) as stream:
        exchange = Exchange(FrameStream(stream), WELCOME)
        other.sendall(encode("later", None, {}) + encode("ok", 1, {"a": 1}))
        with anyio.fail_after(5):
            assert await exchange.ask(simple("ping")) == {"a": 1}
        other.sendall(encode_error(None, "forbidden", "not you"))
        with anyio.fail_after(5), pytest.raises(ForbiddenError, match="not you"):
            await exchange.ask(simple("ping"))


async def welcomes(peer: SocketStream) -> None:
    """With two frames at once."""
    await peer.send(encode("welcome", 0, structs.asdict(WELCOME)) + PAIR)


async def hangs_up(_peer: SocketStream) -> None:
    """At once."""


async def is_silent(_peer: SocketStream) -> None:
    await anyio.sleep_forever()


@asynccontextmanager
async def serving(server: Callable[[SocketStream], Awaitable[None]]) -> AsyncGenerator[Remote]:
    """A server without TLS, by what it does after a hello."""

    async def serve(peer: SocketStream) -> None:
        async with peer:
            await peer.receive()
            await server(peer)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        with anyio.fail_after(5):
            yield Remote("tcp", "127.0.0.1", listener.extra(SocketAttribute.local_port))
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_server_without_tls() -> None:
    async with serving(welcomes) as remote:
        stream, welcome = await dial([remote], {"role": "client"})
        assert welcome == WELCOME
        assert [frame.request for frame in await stream.receive()] == [1, 2]
        await stream.aclose()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("server", "said"), [(hangs_up, "the other side closed the connection"), (is_silent, "no answer to hello within")]
)
async def test_a_server_that_does_not_welcome(
    server: Callable[[SocketStream], Awaitable[None]], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as one that does not answer, for which a client may wait."""
    if server is is_silent:
        monkeypatch.setattr(async_transport, "HELLO_TIMEOUT_S", 0.05)
    async with serving(server) as remote:
        with pytest.raises(NobodyAnswersError, match=rf"^nobody answers; looked at tcp://[\d.:]+ \({said}"):
            await dial([remote], {"role": "client"})


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


@pytest.mark.parametrize("said", [
    encode("later", None, {}) + encode("ok", 1, {"a": 1}), encode_error(None, "forbidden", "not you"),
], ids=["its own", "that of all"])  # fmt: skip
def test_which_frame_is_the_answer_for_who_blocks(ends: tuple[socket.socket, socket.socket], said: bytes) -> None:
    """As for tasks; frames that nobody has asked for are passed over."""
    one, other = ends
    other.sendall(said)
    other.shutdown(socket.SHUT_WR)
    exchange, until_s = BlockingExchange(one), time.monotonic() + 5
    if b"forbidden" in said:
        with pytest.raises(ForbiddenError, match="not you"):
            exchange.ask(simple("ping"), until_s)
    else:
        assert exchange.ask(simple("ping"), until_s) == {"a": 1}


@pytest.mark.anyio
async def test_what_is_done_while_the_server_works(ends: tuple[socket.socket, socket.socket]) -> None:
    """Between the request and its answer: this server answers only then."""
    one, other = ends
    other.settimeout(5)

    def answer() -> None:
        (frame,) = FrameReader().feed(other.recv(100))
        other.sendall(encode("ok", frame.request, {"a": 1}))

    request = replace(simple("ping"), meanwhile=answer)
    assert BlockingExchange(one).ask(request, time.monotonic() + 5) == {"a": 1}
    async with await SocketStream.from_socket(one) as stream:
        with anyio.fail_after(5):
            assert await Exchange(FrameStream(stream), WELCOME).ask(request) == {"a": 1}


@pytest.mark.anyio
async def test_one_task_reads_for_all(ends: tuple[socket.socket, socket.socket]) -> None:
    """A stream has one reader; the answers may come in any order."""
    one, other = ends
    said: dict[int, object] = {}
    async with await SocketStream.from_socket(one) as stream:
        exchange = Exchange(FrameStream(stream), WELCOME)

        async def ask(number: int) -> None:
            said[number] = await exchange.ask(simple("ping"))

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                for number in (1, 2, 3):
                    tasks.start_soon(ask, number)
                await anyio.wait_all_tasks_blocked()
                other.sendall(b"".join(encode("ok", number, {"n": number}) for number in (3, 1, 2)))
    assert said == {number: {"n": number} for number in (1, 2, 3)}


@pytest.mark.anyio
async def test_whole_frames_before_a_break_arrive_on_the_bus(ends: tuple[socket.socket, socket.socket]) -> None:
    one, other = ends
    other.sendall(PAIR + NONE)
    async with await SocketStream.from_socket(one) as stream:
        with anyio.fail_after(5):
            assert [frame.request async for frame in Bus(stream).frames()] == [1, 2]


def test_when_the_time_is_over() -> None:
    assert 0 < _left_s(time.monotonic() + 5) <= 5
    with pytest.raises(TimeoutError):
        _left_s(time.monotonic() - 1)
