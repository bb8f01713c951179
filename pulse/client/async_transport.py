"""
Connections to a server on asyncio and trio: frames over a byte stream, and the requests of many tasks on one of them.

The async client has one ``AsyncTransport``, which makes an ``Exchange`` over a ``FrameStream``, and another when that
breaks. Workers use ``FrameStream`` itself. ``pulse.client.transport`` is the same for the blocking client.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Final, TypeVar

import anyio
from anyio.abc import ByteStream

from pulse.client.discovery import (
    TLS,
    ConnectionLostError,
    LocalSocket,
    Patience,
    Refusal,
    Remote,
    Server,
    find_servers,
    nobody_answers,
    reason_of,
    why_not,
)
from pulse.client.requests import Request, answer_lost, body_of, poll_pauses_s, welcome_of
from pulse.errors import NobodyAnswersError, ProtocolError, PulseError, RefusedError
from pulse.protocol import MAX_FRAME_BYTES, Frame, FrameReader, Welcome, encode
from pulse.system.sockets.unix_stream import of_unix_socket

__all__ = ["AsyncTransport", "FrameStream", "dial"]

CONNECT_S: Final = 10.0  # including the handshake
HELLO_TIMEOUT_S: Final = 10.0  # a server that accepts and does not answer for so long is stopped or stuck
_RECEIVE_BYTES: Final = 256 * 1024  # by TCP an assignment of 1000 small jobs in one read
AnswerT = TypeVar("AnswerT")


class FrameStream:
    """
    A byte stream as frames.

    Args:
        stream: The connection; owned from now on.
        max_frame_bytes: Longest frame accepted.

    """

    def __init__(self, stream: ByteStream, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._stream = stream
        self._reader = FrameReader(max_frame_bytes)
        self._unread: list[Frame] = []

    async def send(self, data: bytes) -> None:
        """
        Write whole frames; returns when the kernel has them. One sender at a time.

        Raises:
            ConnectionLostError: The connection is gone; a part may have been written.

        """
        try:
            await self._stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            raise ConnectionLostError(f"the connection broke: {_said(error)}") from None

    async def receive(self) -> list[Frame]:
        """
        Wait for the next frames, at least one.

        Raises:
            ConnectionLostError: The connection is gone, or closed by the other side.
            ProtocolError: The bytes are not the protocol; whole frames before that have been returned.

        """
        if self._unread:
            frames, self._unread = self._unread, []
            return frames
        while True:
            self._reader.check()
            try:
                data = await self._stream.receive(_RECEIVE_BYTES)
            except anyio.EndOfStream:
                raise ConnectionLostError("the other side closed the connection") from None
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
                raise ConnectionLostError(f"the connection broke: {_said(error)}") from None
            if frames := self._reader.take(data):
                return frames

    def unread(self, frames: list[Frame]) -> None:
        """Give *frames* back: the next ``receive`` returns them."""
        self._unread = frames + self._unread

    async def aclose(self) -> None:
        """Close the connection, whatever state it is in."""
        await anyio.aclose_forcefully(self._stream)


async def dial(targets: Sequence[Server], hello: Mapping[str, object]) -> tuple[FrameStream, Welcome]:
    """
    Connect to the first target that accepts, and introduce this peer.

    Args:
        targets: Servers to try, in order.
        hello: Body of the first frame.

    Raises:
        NobodyAnswersError: None accepts, or the one that does sends no answer; lists the places tried.
        RefusedError: The server refuses this peer.
        ProtocolError: It is no pulse server, or one of another version.

    """
    refusals: list[Refusal] = []
    for target in targets:
        reason = why_not(target)
        if reason is None:
            try:
                stream = FrameStream(await _connected(target))
            except OSError as error:
                reason = reason_of(error)
            else:
                return stream, await _introduce(stream, target, hello)
        refusals.append(Refusal(target, reason))
    raise nobody_answers(refusals)


async def _connected(target: Server) -> ByteStream:
    """
    Connect; to another machine in a bounded time, and by TLS if the address says so.

    Raises:
        OSError: No server accepts in time, or its certificate is for another name.

    """
    if isinstance(target, LocalSocket):
        return of_unix_socket(await anyio.connect_unix(target.path))
    context = None
    if target.scheme == TLS:
        from pulse.security import tls

        context = tls.client_context(target.login.ca, target.login.cert, target.login.key)
    try:
        with anyio.fail_after(CONNECT_S):
            if context is None:
                return await anyio.connect_tcp(target.host, target.port)
            # A frame has its length: a forged end of the stream is noticed.
            return await anyio.connect_tcp(
                target.host, target.port, tls=True, ssl_context=context, tls_standard_compatible=False
            )
    except TimeoutError:
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from None
    except (anyio.BrokenResourceError, anyio.EndOfStream) as error:
        raise OSError(errno.ECONNRESET, "the other side closed the connection during the handshake") from error


async def _introduce(stream: FrameStream, target: Server, hello: Mapping[str, object]) -> Welcome:
    if isinstance(target, Remote):
        hello = {**target.login.hello, **hello}
    try:
        with anyio.fail_after(HELLO_TIMEOUT_S):
            await stream.send(encode("hello", 0, hello))
            first, *more = await stream.receive()
        stream.unread(more)
        return welcome_of(first)
    except BaseException as error:
        await stream.aclose()
        if isinstance(error, TimeoutError):
            raise nobody_answers([Refusal(target, f"no answer to hello within {HELLO_TIMEOUT_S:g} s")]) from None
        if isinstance(error, ConnectionLostError):
            raise nobody_answers([Refusal(target, error.message)]) from None
        raise


def _said(error: Exception) -> str:
    """What the system said, if anyio tells; its own errors have no text."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return reason_of(cause) if isinstance(cause, OSError) else str(error) or "it was closed"


class _Waiter:
    """One request under way."""

    __slots__ = ("event", "frame")

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.frame: Frame | None = None


class Exchange:
    """
    Many requests on one connection, without a task of its own: one of the waiting tasks reads, and wakes the others.

    When the reader has its answer, or is cancelled, it wakes another one to read on. Reading can be cancelled at any
    time without losing bytes; writing cannot, so a cancelled write breaks the connection.
    """

    def __init__(self, stream: FrameStream, welcome: Welcome) -> None:
        self._stream = stream
        self._max_frame_bytes = welcome.max_frame_bytes
        self._sending = anyio.Lock()
        self._waiters: dict[int, _Waiter] = {}
        self._reading = False
        self._number = 0
        self.broken: BaseException | None = None

    async def ask(self, request: Request[Any]) -> dict[str, object]:
        """The body of the answer to *request*; raises the error of the server or the connection."""
        self._number += 1
        number = self._number
        data = request.encode(number, self._max_frame_bytes)
        waiter = self._waiters[number] = _Waiter()
        try:
            await self._send(data)
            request.meanwhile()
            return body_of(await self._answer(waiter))
        finally:
            del self._waiters[number]
            self._wake_reader()

    async def aclose(self) -> None:
        """Close the connection; waiting requests fail."""
        await self._break(ConnectionLostError("the client was closed"))

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            self._check()
            try:
                await self._stream.send(data)
            except BaseException as error:
                await self._break(error)
                raise

    async def _answer(self, waiter: _Waiter) -> Frame:
        while waiter.frame is None:
            self._check()
            if self._reading:
                await waiter.event.wait()
                waiter.event = anyio.Event()
                continue
            self._reading = True
            try:
                self._deliver(await self._stream.receive())
            except PulseError as error:
                await self._break(error)
            finally:
                self._reading = False
        return waiter.frame

    def _deliver(self, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.request is None:
                if frame.kind == "error":
                    body_of(frame)  # raises the error that the server sent before it closed
                continue
            waiter = self._waiters.get(frame.request)
            if waiter is not None:
                waiter.frame = frame
                waiter.event.set()

    def _wake_reader(self) -> None:
        if not self._reading:
            for waiter in self._waiters.values():
                if waiter.frame is None:
                    waiter.event.set()
                    return

    def _check(self) -> None:
        if isinstance(self.broken, ProtocolError | RefusedError):
            raise self.broken  # asking again would end the same way
        if self.broken is not None:
            said = str(self.broken) or "a request was cancelled while it was being sent"
            raise ConnectionLostError(f"the connection broke: {said}")

    async def _break(self, error: BaseException) -> None:
        if self.broken is None:
            self.broken = error
            for waiter in self._waiters.values():
                waiter.event.set()
            await self._stream.aclose()


class AsyncTransport:
    """
    A connection to the server that is renewed when it breaks. Many tasks may ask at a time.

    Args:
        socket: As of ``pulse.connect``.
        timeout_s: Longest wait for one answer, reconnects included, seconds.
        hello: Body of the first frame.
        patience: How long it waits for a server to be there.

    """

    def __init__(
        self,
        socket: str | PathLike[str] | Remote | None,
        timeout_s: float,
        hello: Mapping[str, object],
        patience: Patience,
    ) -> None:
        self._socket = socket
        self._timeout_s = timeout_s
        self._patience = patience
        self._hello = hello
        self._exchange: Exchange | None = None
        self._lost_s: float | None = None  # when it was noticed that there is no connection; by the loop's clock
        self._connecting = anyio.Lock()

    async def open(self) -> None:
        """Connect now, to find out whether a server answers."""
        within_s = max(self._timeout_s, self._patience.connect_s)
        with anyio.move_on_after(within_s):
            await self._connected()
            return
        raise NobodyAnswersError(f"no connection within {within_s:g} s")

    async def aclose(self) -> None:
        """Close the connection; requests under way fail. The next request opens a new one."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            await exchange.aclose()

    async def ask(self, request: Request[AnswerT], within_s: float | None = None) -> AnswerT:
        """
        The answer to *request*, waited for as long as usual, or *within_s* if that is less.

        Raises:
            NobodyAnswersError: None came in time, or the connection broke and the request must not be repeated.
            RefusedError: The server refuses.
            ProtocolError: The frame is no answer to this request.

        """
        limit_s = self._timeout_s if within_s is None else min(within_s, self._timeout_s)
        with anyio.move_on_after(limit_s):
            pauses_s = poll_pauses_s()
            while True:
                exchange = await self._connected()
                try:
                    return request.understood(await exchange.ask(request))
                except ConnectionLostError:
                    if not request.repeatable:
                        raise answer_lost(request.kind) from None
                    await anyio.sleep(next(pauses_s))
        raise NobodyAnswersError(f"{request.kind}: no answer within {limit_s:g} s")

    async def _connected(self) -> Exchange:
        """The connection; a broken one is renewed until patience is at its end."""
        async with self._connecting:
            old = self._exchange
            if old is not None and not old.broken:
                return old
            now_s = anyio.current_time()
            self._lost_s = now_s if self._lost_s is None else self._lost_s
            for pause_s in poll_pauses_s():
                try:
                    stream, welcome = await dial(find_servers(self._socket), self._hello)
                except NobodyAnswersError as error:
                    until_s = self._patience.until_s(error, now_s, None if old is None else self._lost_s)
                    left_s = until_s - anyio.current_time()
                    if left_s <= 0:
                        raise
                    await anyio.sleep(min(pause_s, left_s))
                else:
                    self._lost_s = None
                    self._exchange = Exchange(stream, welcome)
                    return self._exchange
            raise AssertionError
