"""What the async client has on the wire: requests of many tasks on one connection, and their answers."""

from __future__ import annotations

from typing import Any

import anyio

from pulse.client import records
from pulse.client.async_transport import FrameStream
from pulse.client.discovery import ConnectionLostError
from pulse.client.requests import Request
from pulse.errors import ProtocolError, PulseError, RefusedError
from pulse.protocol import Frame, Welcome

__all__ = ["Exchange"]


class _Waiter:
    """One request under way."""

    __slots__ = ("event", "frame")

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.frame: Frame | None = None


class Exchange:
    """
    Many questions on one connection, without a task of its own: one of those who wait reads, and wakes the others.

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
        """The body of the answer to *request*; raises what the server, or the connection, has to say instead."""
        self._number += 1
        number = self._number
        data = request.encode(number, self._max_frame_bytes)
        waiter = self._waiters[number] = _Waiter()
        try:
            await self._send(data)
            return records.body_of(await self._answer(waiter))
        finally:
            del self._waiters[number]
            self._wake_reader()

    async def aclose(self) -> None:
        """Close the connection; whoever waits is told."""
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
                    records.body_of(frame)  # raises: the server's last words before it closes
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
