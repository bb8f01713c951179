"""A Unix socket that is registered with asyncio's loop once, not for every wait as anyio's is."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream

__all__ = ["UnixStream", "of_unix_socket", "send_now"]


def of_unix_socket(stream: SocketStream) -> ByteStream:
    """
    The same connection with fewer system calls, on asyncio; on trio, as it is.

    Args:
        stream: anyio's stream of a Unix socket; owned from now on.

    """
    try:
        on_asyncio = asyncio.current_task() is not None
    except RuntimeError:
        on_asyncio = False
    return UnixStream(stream) if on_asyncio else stream


def send_now(stream: ByteStream, item: bytes) -> int:
    """
    Write as much of *item* as needs no waiting, while no other task sends.

    Returns:
        The number of bytes; 0 for a stream that cannot tell.

    """
    return stream.send_now(item) if isinstance(stream, UnixStream) else 0


class UnixStream(ByteStream):
    """
    One task may receive and one may send at a time; either may be cancelled, and no byte is lost that it did not take.

    Nothing is read that nobody waits for: what is not asked for stays in the kernel. Another loop may go on with it, as
    when a program calls ``asyncio.run`` again.
    """

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._socket: socket.socket = stream.extra(SocketAttribute.raw_socket)
        self._loop: asyncio.AbstractEventLoop | None = None  # with which it is registered
        self._receiving: asyncio.Future[None] | None = None
        self._is_closed = False
        self._max_bytes = 0
        self._read: bytes | OSError | None = None

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """
        Wait for bytes, at least one.

        Raises:
            EndOfStream: The other side has closed, and all is read.
            BrokenResourceError: The connection is gone.
            ClosedResourceError: It was closed here.

        """
        if self._receiving is not None:
            raise anyio.BusyResourceError("reading from")
        if self._read is None:
            await self._wait_readable(max_bytes)
        read, self._read = self._read, None
        if self._is_closed or read is None:
            raise anyio.ClosedResourceError
        if isinstance(read, OSError):
            raise anyio.BrokenResourceError from read
        if not read:
            raise anyio.EndOfStream
        if len(read) > max_bytes:  # of a longer receive that was cancelled
            self._read = read[max_bytes:]
        return read[:max_bytes]

    async def _wait_readable(self, max_bytes: int) -> None:
        if self._is_closed:
            return
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._unregister()
            loop.add_reader(self._socket, self._readable)
            self._loop = loop
        self._max_bytes = max_bytes
        self._receiving = loop.create_future()
        try:
            await self._receiving
        finally:
            self._receiving = None

    def _readable(self) -> None:
        """Bytes have come, or the end."""
        if self._receiving is None:  # nobody waits: they stay in the kernel
            self._unregister()
            return
        if self._receiving.done():  # whose task has its turn now
            return
        try:
            self._read = self._socket.recv(self._max_bytes)
        except BlockingIOError:
            return
        except OSError as error:
            self._read = error
        self._receiving.set_result(None)

    async def send(self, item: bytes) -> None:
        """
        Write all of *item*.

        Raises:
            BrokenResourceError: The connection is gone; a part may have been written.
            ClosedResourceError: It was closed here.

        """
        sent_bytes = self.send_now(item)
        if sent_bytes < len(item):
            await self._stream.send(item[sent_bytes:])

    def send_now(self, item: bytes) -> int:
        """Write what the socket takes at once; the number of bytes. What prevents more, ``send`` finds out."""
        try:
            return self._socket.send(item)
        except OSError:
            return 0

    async def send_eof(self) -> None:
        """Nothing more is sent."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close it; the task that waits gets ClosedResourceError."""
        self._is_closed = True
        self._unregister()
        if self._receiving is not None and not self._receiving.done():
            self._receiving.set_result(None)
        await self._stream.aclose()

    def _unregister(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._socket)

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """Those of anyio's stream."""
        return self._stream.extra_attributes
