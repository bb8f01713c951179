"""The anyio pump: frames over a byte stream, on asyncio and trio. It waits; everything else is in ``protocol``."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from typing import Final

import anyio
from anyio.abc import ByteStream

from pulse.client import records
from pulse.client.discovery import (
    TLS,
    ConnectionLostError,
    Refusal,
    Remote,
    Server,
    Target,
    nobody_answers,
    reason_of,
    why_not,
)
from pulse.protocol import MAX_FRAME_BYTES, Frame, FrameReader, Welcome, encode

__all__ = ["FrameStream", "dial"]

CONNECT_S: Final = 10.0  # with its handshake
HELLO_TIMEOUT_S: Final = 10.0  # a server that accepts and says nothing for so long is stopped or stuck
_RECEIVE_BYTES: Final = 256 * 1024  # an assignment of 1000 small jobs in one read


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
            ProtocolError: What came is not the protocol; whole frames before that have been returned.

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
        NobodyAnswersError: None accepts, or the one that did says nothing; lists where was looked.
        RefusedError: The server does not want this peer.
        ProtocolError: What answers is no pulse server, or one of another version.

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
    A connection; to another machine in a bounded time, behind TLS where that is named.

    Raises:
        OSError: Nobody accepts, not in time, or not as who was named.

    """
    if isinstance(target, Target):
        return await anyio.connect_unix(target.path)
    context = None
    if target.scheme == TLS:
        from pulse.security import tls

        context = tls.client_context(target.login.ca, target.login.cert, target.login.key)
    try:
        with anyio.fail_after(CONNECT_S):
            if context is None:
                return await anyio.connect_tcp(target.host, target.port)
            # A frame says how long it is: an end that somebody forges is none.
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
        return records.welcome_of(first)
    except BaseException as error:
        await stream.aclose()
        if isinstance(error, TimeoutError):
            raise nobody_answers([Refusal(target, f"no answer to hello within {HELLO_TIMEOUT_S:g} s")]) from None
        if isinstance(error, ConnectionLostError):
            raise nobody_answers([Refusal(target, error.message)]) from None
        raise


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
