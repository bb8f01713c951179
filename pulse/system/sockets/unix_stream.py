"""A Unix socket that stays registered with asyncio's loop between two waits; anyio registers its own for each wait."""

from __future__ import annotations

import asyncio
import socket
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream
from anyio.lowlevel import checkpoint, current_token

__all__ = ["UnixStream", "of_unix_socket"]

MOST_READ_BYTES: Final = 64 * 1024  # at a time: for larger buffers malloc asks the kernel each time


def of_unix_socket(stream: SocketStream) -> ByteStream:
    """
    The same connection with fewer system calls, on asyncio; on trio, as it is.

    Args:
        stream: anyio's stream of a Unix socket; owned from now on.

    """
    token = current_token()
    loop = getattr(token, "native_token", token)  # before anyio 4.11 it was the loop itself
    return UnixStream(stream) if isinstance(loop, asyncio.AbstractEventLoop) else stream


class UnixStream(ByteStream):
    """
    One task may receive and one may send at a time; either may be cancelled, and no byte is lost that it did not take.

    Nothing is read unless a task waits for it: the rest stays in the kernel. Another loop may go on with it, as when a
    program calls ``asyncio.run`` again.
    """

    def __init__(self, stream: SocketStream) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None  # with which it is registered
        self._stream = stream
        self._socket: socket.socket = stream.extra(SocketAttribute.raw_socket)
        self._receiving: asyncio.Future[None] | None = None
        self._is_sending = False
        self._is_closed = False
        self._most_bytes = MOST_READ_BYTES
        self._read: bytes | OSError | None = None

    async def receive(self, max_bytes: int = MOST_READ_BYTES) -> bytes:
        """
        Wait for bytes, at least one.

        Raises:
            EndOfStream: The other side has closed, and all is read.
            BrokenResourceError: The connection is gone.
            ClosedResourceError: It was closed here.
            BusyResourceError: Another task waits for bytes.

        """
        if self._receiving is not None:
            raise anyio.BusyResourceError("reading from")
        self._most_bytes = min(max_bytes, MOST_READ_BYTES)
        # First of all: after an error uvloop watches the socket no more, and what was written before it is still there.
        while self._read is None and not self._is_closed:
            if self._try_receive():
                await checkpoint()
            else:
                await self._wait_readable()
        read, self._read = self._read, None
        if read is None:
            raise anyio.ClosedResourceError
        if isinstance(read, OSError):
            raise anyio.BrokenResourceError from read
        if not read:
            raise anyio.EndOfStream
        if len(read) > max_bytes:  # of a longer receive that was cancelled
            self._read = read[max_bytes:]
        return read[:max_bytes]

    def _try_receive(self) -> bool:
        """Read what is there; returns whether there was anything, be it the end."""
        try:
            self._read = self._socket.recv(self._most_bytes)
        except BlockingIOError:
            return False
        except OSError as error:
            self._read = error
        return True

    async def _wait_readable(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._unregister()
            self._loop = loop
            loop.add_reader(self._socket, _waker(self))
        self._receiving = loop.create_future()
        try:
            await self._receiving
        finally:
            self._receiving = None

    def readable(self) -> None:
        """Bytes have come, or the end; for the loop."""
        if self._receiving is None:  # no task waits: they stay in the kernel
            self._unregister()
        elif not self._receiving.done():  # else its task has its turn now
            if not self._try_receive():
                self._unregister()  # a write met an error, after which uvloop watches the socket no more
            self._receiving.set_result(None)

    async def send(self, item: bytes) -> None:
        """
        Write all of *item*.

        Raises:
            BrokenResourceError: The connection is gone; a part may have been written.
            ClosedResourceError: It was closed here.
            BusyResourceError: Another task is sending.

        """
        if self._is_sending:
            raise anyio.BusyResourceError("writing to")
        sent_bytes = self.send_now(item)
        if sent_bytes < len(item):
            self._is_sending = True
            try:
                await self._stream.send(item[sent_bytes:])
            finally:
                self._is_sending = False

    def send_now(self, item: bytes) -> int:
        """Write what the socket takes at once; the number of bytes. What prevents more, ``send`` finds out."""
        if self._is_sending:
            return 0
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

    def __del__(self) -> None:
        self._unregister()

    def _unregister(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._socket)

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """Those of anyio's stream."""
        return self._stream.extra_attributes


def _waker(stream: UnixStream) -> Callable[[], None]:
    """What the loop calls: not the stream's own method, or the loop would keep a connection that its owner dropped."""
    readable = weakref.WeakMethod(stream.readable)

    def wake() -> None:
        found = readable()
        if found is not None:
            found()

    return wake
